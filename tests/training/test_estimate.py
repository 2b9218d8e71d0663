"""Programs as the TPU compiler writes them, with numbers that can be reckoned by hand."""

import pytest

from bert_jax.training.estimate import Program, Speeds, estimate

# A FLOP or a cycle takes a nanosecond, a byte of memory 2, one of the links 4.
SPEEDS = Speeds(peak=1e9, clock=1e9, memory=0.5e9, links=0.25e9)


def program(entry: str, others: str = "") -> Program:
    """A program whose last computation holds ``entry``."""
    head = "ENTRY %main.1 (p.1: f32[4]) -> f32[4] {"
    return Program(f"HloModule x, is_scheduled=true\n{others}\n{head}\n{entry}\n}}\n")


def cycles(count: int) -> str:
    return f'backend_config={{"window_config":{{"estimated_cycles":"{count}"}}}}'


def nanoseconds(found: Program, **options: bool) -> tuple[float, dict[str, float]]:
    """All and by share; each share is there that is not 0."""
    result = estimate(found, SPEEDS, **options)
    assert sum(result.shares.values()) == pytest.approx(result.seconds)
    shares = {
        name: round(1e9 * share, 6) for name, share in result.shares.items() if share
    }
    return round(1e9 * result.seconds, 6), shares


@pytest.mark.parametrize(
    ("left", "right", "result", "attributes", "multiplied"),
    [
        (
            *("bf16[96,64]", "bf16[64,32]", "bf16[96,32]"),
            "dim_labels=bf_io->bf",
            96 * 64 * 32,
        ),
        # A batch is an axis of the window.
        (
            *("bf16[8,85,64]", "bf16[32,64,1]", "f32[8,85,32]"),
            "window={size=1}, dim_labels=0bf_oi0->0bf",
            8 * 85 * 64 * 32,
        ),
        # A kernel's gradient is summed over rows and positions.
        (
            *("bf16[8,85,96]", "bf16[8,85,64]", "bf16[96,64,1]"),
            "window={size=8}, dim_labels=0fb_0io->bf0",
            8 * 85 * 96 * 64,
        ),
        # Scores: rows and heads are dilated, so that each meets itself alone.
        (
            *("bf16[8,93,12,64]", "bf16[8,48,12,64]", "f32[8,12,93,48]"),
            "window={size=8x12 stride=7x11 lhs_dilate=8x12}, dim_labels=0b1f_0o1i->01bf",
            8 * 12 * 93 * 48 * 64,
        ),
        # Heads are an axis of the kernel alone, which goes through a padded window.
        (
            *("bf16[8,93,768,1]", "bf16[12,64,768,1]", "bf16[8,93,12,64]"),
            "window={size=1x12 pad=0_0x11_11 rhs_reversal=0x1}, dim_labels=0bf1_1oi0->0b1f",
            8 * 93 * 12 * 64 * 768,
        ),
        # The gradient of such a kernel.
        (
            *("bf16[8,512,768,1]", "bf16[8,512,12,64]", "bf16[768,12,64,1]"),
            "window={size=12x8 pad=11_11x0_0 rhs_reversal=1x0}, dim_labels=1fb0_1i0o->b0f1",
            8 * 512 * 768 * 12 * 64,
        ),
    ],
)
def test_products_in_the_forms_of_the_compiler(
    left, right, result, attributes, multiplied
):
    found = program(
        f"  %a = {left} parameter(0)\n  %b = {right} parameter(1)\n"
        f"  ROOT %c.1 = {result} convolution(%a, %b), {attributes}"
    )
    assert found.products("main.1") == 2 * multiplied


FUSION = """
%fused (q.1: f32[64], q.2: s32[1], q.3: f32[4,4]) -> f32[4] {
  %q.1 = f32[64]{0} parameter(0)
  %q.2 = s32[1]{0} parameter(1)
  %q.3 = f32[4,4]{1,0} parameter(2)
  %part = f32[4]{0} dynamic-slice(%q.1, %q.2), dynamic_slice_sizes={4}
  %row = f32[1,4]{1,0} reshape(%part)
  %product = f32[1,4]{1,0} convolution(%row, %q.3), dim_labels=bf_io->bf
  ROOT %whole = f32[4]{0} reshape(%product)
}
"""
ENTRY = """
  %p.1 = f32[64]{0} parameter(0)
  %p.2 = s32[1]{0:S(1)} parameter(1)
  %p.3 = f32[4,4]{1,0} parameter(2)
  ROOT %f = f32[4]{0:S(1)} fusion(%p.1, %p.2, %p.3), kind=kOutput, calls=%fused, """


def test_a_fusion_takes_the_longer_of_its_bytes_and_its_cycles():
    """It reads 4 of 64 numbers and a kernel, and no memory for what is on the chip."""
    memory, matrix = 2 * (4 * 4 + 16 * 4), 2 * 4 * 4
    short = program(ENTRY + cycles(100), FUSION)
    expected = {"matrix": matrix, "memory": memory - matrix}
    assert nanoseconds(short) == (memory, expected)
    long = program(ENTRY + cycles(1000), FUSION)
    total, shares = nanoseconds(long)
    assert total == 1000
    assert shares == expected | {"vector": 1000 - memory}
    assert nanoseconds(long, by_cycles=False) == nanoseconds(short)


def test_arrays_fill_their_tiles():
    """85 rows of 300 numbers lie in tiles of 8 x 128: 88 rows of 384."""
    found = program(
        "  %p.1 = bf16[85,300]{1,0:T(8,128)(2,1)S(1)} parameter(0)\n"
        "  ROOT %c = f32[85,300]{1,0:T(8,128)} convert(%p.1)"
    )
    assert nanoseconds(found)[0] == 2 * 4 * 88 * 384


COPY = """
  %p.1 = f32[64]{0} parameter(0)
  %s = (f32[64]{0:S(1)}, f32[64]{0}, u32[]{:S(2)}) copy-start(%p.1)
  %a = f32[4]{0:S(1)} exponential(%p.2), CYCLES
  %d = f32[64]{0:S(1)} copy-done(%s)
  ROOT %b = f32[4]{0:S(1)} exponential(%a), CYCLES"""


@pytest.mark.parametrize(("work", "wait"), [(100, 2 * 256 - 100), (600, 0)])
def test_a_copy_goes_on_beside_other_work(work, wait):
    entry = COPY.replace("CYCLES", cycles(work))
    found = program("  %p.2 = f32[4]{0:S(1)} parameter(1)" + entry)
    assert nanoseconds(found)[0] == 2 * work + wait


def test_work_that_uses_the_memory_delays_a_copy():
    entry = COPY.replace("CYCLES", cycles(100))
    found = program("  %p.2 = f32[4]{0} parameter(1)" + entry)
    assert nanoseconds(found)[0] == 2 * 256 + 2 * 16 + 100


def test_sums_go_twice_over_the_links_and_wait_where_they_are_not_begun_before():
    ready = "  %p.1 = f32[8]{0:S(1)} parameter(0)\n"
    at_once = ready + "  ROOT %r = f32[8]{0} all-reduce(%p.1), to_apply=%add"
    assert nanoseconds(program(at_once)) == (256, {"links": 256})
    begun = (
        f"{ready}  %r = f32[8]{{0}} all-reduce-start(%p.1), to_apply=%add\n"
        f"  %e = f32[8]{{0:S(1)}} exponential(%p.1), {cycles(200)}\n"
        "  ROOT %d = f32[8]{0} all-reduce-done(%r)"
    )
    assert nanoseconds(program(begun)) == (
        256,
        {"vector": 200, "links": 56},
    )
    gathered = ready + (
        "  %g = (f32[8]{0}, f32[32]{0}) all-gather-start(%p.1)\n"
        "  ROOT %d = f32[32]{0} all-gather-done(%g)"
    )
    assert nanoseconds(program(gathered))[0] == 4 * 4 * 32


def test_a_loop_counts_as_often_as_it_runs():
    body = (
        "%body (b.1: f32[4]) -> f32[4] {\n  %b.1 = f32[4]{0:S(1)} parameter(0)\n"
        f"  ROOT %e = f32[4]{{0:S(1)}} exponential(%b.1), {cycles(10)}\n}}"
    )
    found = program(
        "  %p.1 = f32[4]{0:S(1)} parameter(0)\n"
        "  ROOT %w = f32[4]{0:S(1)} while(%p.1), condition=%less, body=%body, "
        'backend_config={"known_trip_count":{"n":"12"}}',
        body,
    )
    assert nanoseconds(found) == (120, {"vector": 120})
