"""Reading collectives from HLO text, in the forms that the TPU compiler writes."""

import pytest

from bert_jax.training.collectives import collectives

HLO = """
ENTRY %main {
  %all-reduce.1 = f32[768,12]{1,0:T(8,128)} all-reduce(f32[768,12]{1,0} %a), to_apply=%add
  %all-reduce.2 = (bf16[8]{0}, f32[2,3]{1,0}) all-reduce(bf16[8]{0} %b, f32[2,3]{1,0} %c)
  %ag = (bf16[4,8]{1,0}, bf16[64,8]{1,0}) all-gather-start(bf16[4,8]{1,0} %d)
  %agd = bf16[64,8]{1,0} all-gather-done((bf16[4,8]{1,0}, bf16[64,8]{1,0}) %ag)
  %rs = f32[16]{0} reduce-scatter(f32[256]{0} %e), dimensions={0}
  %cp = (u32[2]{0}, u32[2]{0}, u32[], u32[]) collective-permute-start(u32[2]{0} %f)
  %add.5 = f32[768,12]{1,0} add(f32[768,12]{1,0} %all-reduce.1, f32[768,12]{1,0} %g)
}
"""


@pytest.mark.parametrize(
    ("kind", "count", "size"),
    [
        ("all-reduce", 2, 768 * 12 * 4 + 8 * 2 + 6 * 4),
        ("all-gather", 1, 64 * 8 * 2),
        ("reduce-scatter", 1, 16 * 4),
        ("collective-permute", 1, 2 * 4),
    ],
)
def test_results_are_counted_once(kind, count, size):
    found = collectives(HLO)
    assert (found[kind].count, found[kind].bytes) == (count, size)


def test_other_instructions_are_none():
    assert set(collectives(HLO)) == {
        "all-reduce",
        "all-gather",
        "reduce-scatter",
        "collective-permute",
    }
    assert collectives("%x = f32[4]{0} add(f32[4]{0} %a, f32[4]{0} %b)") == {}
