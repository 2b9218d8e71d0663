"""Uploads of a saved model to the Hugging Face Hub."""

import os

from bert_jax.errors import UserError


def push(
    folder: os.PathLike | str, name: str, private: bool | None, token: str | None
) -> str:
    """Uploads the files of a folder to the model ``name``. Returns the model's address.

    The model is created if it does not exist. Environment variables of huggingface_hub
    apply, such as HF_ENDPOINT and HF_TOKEN. Raises UserError if the hub refuses.
    """
    # Imported late, because it takes a second.
    import huggingface_hub

    api = huggingface_hub.HfApi(token=token)
    try:
        url = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=url.repo_id,
            folder_path=folder,
            commit_message="Upload a model of bert_jax",
        )
    except Exception as error:  # the errors have no common type
        reason = " ".join(str(error).split())[:400] or type(error).__name__
        raise UserError(
            f"{api.endpoint} refused {name} ({reason}); expected NAME or org/NAME and a "
            "token that may write there: run 'hf auth login', or set token"
        ) from error
    return str(url)
