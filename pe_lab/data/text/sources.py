"""Files of text: the one that is shipped, Python's standard library, downloads, and files of your own."""

import hashlib
import os
import shutil
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pooch

from pe_lab.data.text.cache import cached_folder
from pe_lab.data.text.text_rows import ROW_SUFFIXES, saved_files

# formats in which text is wrapped: a model would learn their syntax
WRAPPED_SUFFIXES = {
    ".json",
    ".jsonl",
    ".ndjson",
    ".csv",
    ".tsv",
    ".ipynb",
    ".pdf",
    ".rtf",
    ".doc",
    ".docx",
    ".odt",
    ".epub",
}
WRAPPED_SUFFIXES |= {
    ".gz",
    ".bz2",
    ".xz",
    ".zst",
    ".zip",
    ".7z",
    ".tar",
    ".tgz",
    ".parquet",
    ".arrow",
    ".feather",
    ".npy",
    ".npz",
}
WRAPPED_SUFFIXES |= {".npz", ".pkl", ".pickle", ".pt", ".pth", ".safetensors", ".h5", ".hdf5", ".db", ".sqlite"}
TEST_FOLDERS = ("test", "tests", "idle_test")  # folders of the standard library that are left out


@dataclass(frozen=True)
class Download:
    """A file on the network.

    Args:
        sha256: the SHA-256 checksum of the downloaded file.
        member: the name of the file in the downloaded archive; None: the download is the file itself.
    """

    url: str
    sha256: str
    member: str | None = None


SHIPPED_FOLDER = Path(__file__).parent / "shipped"  # its README says where the files are from
CHECKSUMS = {"tinyshakespeare": "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"}  # SHA-256
DOWNLOADS = {
    "enwik8": Download(
        "https://mattmahoney.net/dc/enwik8.zip",
        "547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
        member="enwik8",
    ),
}


def shipped_file(name: str) -> Path:
    """Return a file that comes with the package.

    Raises:
        ValueError: it is missing, or has another checksum.
    """
    file = SHIPPED_FOLDER / f"{name}.txt"
    try:
        actual = hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        actual = error.strerror or type(error).__name__
    if actual != CHECKSUMS[name]:
        raise ValueError(
            f"data.corpus={name} must be the shipped file with SHA-256 {CHECKSUMS[name]}, got {file} ({actual}): "
            "install pe_lab again"
        )
    return file


def standard_library() -> list[Path]:
    """Return the .py files of Python's standard library, without tests and without built or installed files.

    So the text depends on the version of Python only.
    """
    root = Path(sysconfig.get_path("stdlib"))
    modules = []
    for name in sys.stdlib_module_names:
        module = root / f"{name}.py"
        modules += [module] if module.is_file() else []
        for folder, folders, names in os.walk(root / name):
            folders[:] = [inner for inner in folders if inner not in TEST_FOLDERS]
            modules += [Path(folder, file) for file in names if file.endswith(".py")]
    return sorted(modules)


def own_files(path: Path, column: str | None = None) -> list[Path]:
    """Return the file itself, or the files under a folder without hidden ones.

    Args:
        column: the column that has the text, in files of ROW_SUFFIXES; None: the files are plain text.

    Raises:
        ValueError: there is neither; a folder in it cannot be read; something in it is neither a file nor a folder, or
            a file's suffix is in WRAPPED_SUFFIXES, or not in ROW_SUFFIXES where a column is given.
    """
    files = [path] if path.is_file() else _files_under(path)
    if column is not None:
        files = files if path.is_file() else saved_files(path) or files
        for file in files:
            if file.suffix.lower() not in ROW_SUFFIXES:
                raise ValueError(f"data.path must have files of {', '.join(ROW_SUFFIXES)} with data.column, got {file}")
        return files
    for file in files:
        if file.suffix.lower() in WRAPPED_SUFFIXES:
            refuse_wrapped(file, file.suffix)
    return files


def refuse_wrapped(file: Path, form: str) -> NoReturn:
    """Raise the error that a file is not plain text.

    Raises:
        ValueError: always.
    """
    way = "write the text that is in it to .txt files"
    if file.suffix.lower() in ROW_SUFFIXES:
        way = "name the column of its text as data.column"
    raise ValueError(f"data.path must be plain text, got {file} ({form}): {way}")


def _files_under(path: Path) -> list[Path]:
    if not path.is_dir():
        raise ValueError(f"data.path must be a file or a folder that is there, got {path}")

    def refuse(error: OSError) -> None:
        raise ValueError(f"data.path must be a folder that can be read, got {error.filename} ({error.strerror})")

    files = []
    for folder, folders, names in os.walk(path, onerror=refuse):
        folders[:] = [name for name in folders if name[0] != "."]
        links = [name for name in folders if Path(folder, name).is_symlink()]
        for name in (*links, *(name for name in names if name[0] != ".")):
            if not Path(folder, name).is_file():
                raise ValueError(f"data.path must have only files and folders in it, got {Path(folder, name)}")
            files.append(Path(folder, name))
    return sorted(files)


def download_corpus(name: str, folder: Path) -> Path:
    """Return the file of a named corpus; download it if it is missing, and check its checksum.

    Raises:
        ValueError: there is no network, or the download has another checksum.
    """
    return cached_folder(folder / name, lambda entry: _retrieve(name, entry / name)) / name


def _retrieve(name: str, target: Path) -> None:
    source = DOWNLOADS[name]
    try:
        arrived = Path(pooch.retrieve(source.url, f"sha256:{source.sha256}", f"{name}.part", target.parent))
        if source.member is None:
            arrived.replace(target)
        else:
            with (
                zipfile.ZipFile(arrived) as archive,
                archive.open(source.member) as packed,
                target.open("wb") as opened,
            ):
                shutil.copyfileobj(packed, opened)
            arrived.unlink()
    except OSError as error:
        reason = f"no download ({error.strerror or type(error).__name__})"
    except ValueError:
        reason = "a file with another checksum"
    else:
        return
    raise ValueError(
        f"data.corpus={name} must be downloaded from {source.url}, got {reason}: "
        "use the default data.corpus=tinyshakespeare, or a file of your own with data.path"
    )
