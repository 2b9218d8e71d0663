"""The worker of memory.py that measures transformers' BertForPreTraining.

PyTorch's tracker follows the tensors of two steps. They have shapes and no values. The
model computes in bfloat16 by autocast. Its attention has no dropout, because PyTorch on a
CPU then keeps weights that its kernels for GPUs do not keep. The environment is that of
pretraining_peer.py.
"""

import warnings

import torch
from common import answer
from pretraining_peer import make_model, make_step, random_batch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker


def measure(options):
    """Bytes of parameters and Adam, and of everything else at the peak."""
    options.dropout, options.attention_dropout = 0.1, 0.0
    options.dtype, options.compile = "autocast", False
    warnings.simplefilter("ignore")
    with FakeTensorMode():
        model = make_model(options)
        batch = random_batch(options, model.config.vocab_size)
        step, optimizer = make_step(options, model, batch, fused=False)
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        with tracker:
            for _ in range(2):
                tracker.reset_mod_stats()
                step()
        peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    sizes = {str(kind).rpartition(".")[2]: size for kind, size in peak.items()}
    state = sum(sizes[kind] for kind in ("PARAM", "BUFFER", "OPT"))
    return {"state_bytes": state, "step_bytes": sizes["Total"] - state}


if __name__ == "__main__":
    answer(measure)
