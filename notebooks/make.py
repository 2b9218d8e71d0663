"""Runs each notebook .py of this folder, and saves it as an .ipynb with outputs.

Edit and review the .py (jupytext's format py:percent). The .ipynb of the same name is for
readers and for Colab. It has one more cell, which installs bert_jax.

usage:
  python notebooks/make.py [NAME ...]
"""

import base64
import io
import os
import re
import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell
from PIL import Image

FOLDER = Path(__file__).parent
INSTALL = """\
# Installs bert_jax if it is missing, as in a new Colab runtime: a minute or two. Put your
# clone into Google Drive as MyDrive/bert_jax, and mount the Drive, before you run this.
import importlib.util, os, shutil
from pathlib import Path

clone = Path("/content/drive/MyDrive/bert_jax")
if clone.is_dir():
    os.environ.setdefault("ENGLISH", f"{{clone}}/models/english")
if importlib.util.find_spec("bert_jax") is None:
    tpu = any(Path("/dev").glob("accel*")) or any(Path("/dev/vfio").glob("[0-9]*"))
    gpu = shutil.which("nvidia-smi")
    device = {device}
    %cd -q {{clone}}
    %pip install -q ".[notebooks{{device}}]"
    %cd -q /content"""
DEVICE = '",tpu" if tpu else ",gpu" if gpu else ""'
# The TPU compiler, even if there is no TPU.
DEVICES = {"eight_devices": '",tpu"'}


def with_header(notebook: NotebookNode, name: str) -> NotebookNode:
    """The notebook with the cell and the metadata that Colab needs."""
    device = DEVICES.get(name, DEVICE)
    install = new_code_cell(INSTALL.format(device=device), id="install")
    title, *cells = notebook.cells
    for i, cell in enumerate([title, *cells]):
        cell.id = f"cell{i}"  # jupytext draws them at random
    metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3"},
        "language_info": {"name": "python"},
        "colab": {"provenance": []},
    }
    if name not in DEVICES:
        metadata |= {"accelerator": "TPU"}
        metadata["colab"]["gpuType"] = "V5E1"
    cells = [title, install, *cells]
    return nbformat.v4.new_notebook(cells=cells, metadata=metadata)


def with_fewer_colours(png: str) -> str:
    """A picture, in base64, with 256 colours: a third of the size."""
    image = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    with io.BytesIO() as file:
        image.quantize(256, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
        return base64.b64encode(file.getvalue()).decode()


def make(name: str, workdir: Path) -> Path:
    """Runs a notebook in ``workdir`` and writes it next to its source."""
    notebook = with_header(jupytext.read(FOLDER / f"{name}.py"), name)
    client = NotebookClient(
        notebook,
        timeout=None,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": workdir}},
    )
    client.execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.metadata = NotebookNode()
            # stderr has warnings of libraries about this machine.
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
            for output in cell.outputs:
                if "text" in output:  # without the progress bars
                    output.text = re.sub(r"[^\n]*\r", "", output.text)
                if "image/png" in output.get("data", {}):
                    output.data["image/png"] = with_fewer_colours(
                        output.data["image/png"]
                    )
            cell.outputs = [o for o in cell.outputs if o.get("text") != ""]
    path = FOLDER / f"{name}.ipynb"
    nbformat.validate(notebook)
    path.write_text(nbformat.writes(notebook, indent=1) + "\n", encoding="utf-8")
    return path


def main(names: list[str]) -> None:
    """Makes the notebooks with these names, or all notebooks without names."""
    found = sorted(p.stem for p in FOLDER.glob("*.py") if p.name != Path(__file__).name)
    workdir = FOLDER.parent / "build"
    workdir.mkdir(exist_ok=True)
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    for name in names or found:
        path = make(name, workdir)
        print(f"{path}: {path.stat().st_size / 1e3:,.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
