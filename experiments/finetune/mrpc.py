from ml_collections import ConfigDict

def get_config():
    return ConfigDict(dict(family="classification", init_from="", data=dict(task="mrpc", dir="", max_length=128), batch_size=32, epochs=3, seed=0, train_rows=0,log_every=50,
      optimizer=dict(learning_rate=5e-5, bias_correction=False)))
