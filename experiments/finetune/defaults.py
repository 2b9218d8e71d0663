"""What every fine-tuning config starts from: the paper's settings (appendix A.3).

Not a config to run: see mrpc.py, wnut17.py, codah.py, squad.py beside it.
"""

from ml_collections import ConfigDict


def defaults(family: str, **data) -> ConfigDict:
    """A config of a task family; ``data`` are the settings of its data."""
    return ConfigDict(
        dict(
            family=family,
            data=data,
            init_from="",  # checkpoint: Hugging Face folder, bert_model.ckpt or workdir
            fresh_head=False,  # drop the head that the checkpoint may have
            batch_size=32,  # rows (windows, where texts are long) an update
            eval_batch_size=64,  # rows
            epochs=3,  # over the training rows; the paper takes 3 or 4
            accumulation=1,  # microbatches an update
            evaluations=1,  # on dev, an epoch; the best one is kept
            packing=True,  # several sequences a row, batches at random; or of like lengths
            buckets=12,  # shapes that are compiled, at most
            train_rows=0,  # the first rows alone; 0 for all
            log_every=50,  # updates
            seed=0,  # of the head, the order of the rows and dropout
            optimizer=dict(
                learning_rate=5e-5,  # peak; the paper takes the best of 5e-5, 3e-5, 2e-5
                warmup=0.1,  # share of the updates
                weight_decay=0.01,  # per unit of the learning rate
                clip_norm=1.0,  # of the global gradient
                beta1=0.9,
                beta2=0.999,
                epsilon=1e-6,  # outside the square root
                bias_correction=False,  # of Adam; True where small tasks collapse
            ),
            model=dict(
                hidden_dropout=0.1,  # rate
                attention_dropout=0.1,  # rate, of the attention probabilities
                activation="",  # the checkpoint's own; gelu_tanh for Google's newer ones
                initializer_range=0.0,  # of a new head; 0 for the checkpoint's own
            ),
            compute=dict(
                dtype="float32",  # of the activations; bfloat16 on TPU and GPU
                attention_impl="auto",  # or plain, xla, splash (TPU), cudnn (GPU)
                remat=False,  # recompute activations in the backward pass
                scan_layers=False,  # compile one layer for all
            ),
            # Devices along each axis; fsdp: those along data share the parameters' memory.
            mesh=dict(replica=1, data=-1, model=1, fsdp=False),
            features=dict(
                layers=(),  # empty: fine-tune; (-4, -3, -2, -1): feature-based tagging
                lstm_layers=2,
                width=768,  # units of the LSTM in each direction
                dropout=0.1,  # rate
            ),
            sweep=dict(  # with --sweep: the paper's grid
                batch_size=(16, 32),  # rows
                learning_rate=(5e-5, 3e-5, 2e-5),
                epochs=(3, 4),
                seeds=(0, 1, 2),
            ),
        )
    )
