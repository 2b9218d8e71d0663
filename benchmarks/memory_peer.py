"""Memory of a pretraining step of transformers' BertForPreTraining, without running it.

PyTorch's tracker follows the tensors of two steps, which have shapes and no values:
autocast to bfloat16, clipping, AdamW, as pretraining_peer.py. Attention has no dropout
here: with it PyTorch on a CPU keeps every weight, which its kernels for GPUs do not. The
last line printed is JSON: state_bytes of parameters and of Adam, step_bytes of the rest at
the peak.

It needs an environment of its own:
  pip install torch==2.13.0 transformers==5.23.0 psutil

usage:
  python benchmarks/memory_peer.py --size base --batch 32 --length 128 --predictions 20
"""

import json
import warnings

import torch
from pretraining_peer import make_model, random_batch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from workers import step_parser

STATE = ("PARAM", "BUFFER", "OPT")


def measure(options):
    """The results as a dictionary for JSON."""
    device = torch.device("cpu")
    warnings.simplefilter("ignore")
    with FakeTensorMode():
        model = make_model(options)
        parameters = list(model.parameters())
        optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01)
        batch = random_batch(options, model.config.vocab_size, device)
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        with tracker:
            for _ in range(2):
                tracker.reset_mod_stats()
                with torch.autocast(device.type, torch.bfloat16):
                    loss = model(**batch).loss
                loss.backward()
                torch.nn.utils.clip_grad_norm_(parameters, 1.0)
                optimizer.step()
                optimizer.zero_grad()
        peak = tracker.get_tracker_snapshot("peak")[device]
    named = {str(kind).rpartition(".")[2]: size for kind, size in peak.items()}
    state = sum(named[kind] for kind in STATE)
    return {
        **vars(options),
        "state_bytes": state,
        "step_bytes": named["Total"] - state,
        "versions": {"torch": torch.__version__},
    }


if __name__ == "__main__":
    flags = step_parser(__doc__, ("autocast",), "sdpa")
    flags.set_defaults(dtype="autocast", attention_dropout=0.0)
    print(json.dumps(measure(flags.parse_args())))
