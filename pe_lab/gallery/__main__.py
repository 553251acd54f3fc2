"""Write the gallery as a static site: a page per encoding and per task of the benchmark, a leaderboard, needs, claims.

pe-lab gallery [--pe NAME,...] [--out build/gallery] [--results FOLDER] [--studies FOLDER] [--cache FOLDER]

The first run draws every encoding and takes about four minutes of CPU time; later ones read the cache. --pe draws a
few. Open OUT/index.html in a browser: it needs no server and no network. `mkdocs build` makes the same pages as a part
of the documentation. Both need `pip install 'pe_lab[docs]'`.
"""

from pathlib import Path

from pe_lab.gallery.definitions import definitions
from pe_lab.gallery.formulas import mathml
from pe_lab.system.arguments import Parser, run_program
from pe_lab.system.files import require_writable
from pe_lab.system.names import HELP_COMMAND, unknown_name_message


def main() -> None:
    """Read the arguments and write the site."""
    parser = Parser("pe_lab.gallery", description=__doc__)
    parser.add_argument("--pe", metavar="NAME,...", help="only these encodings (default: all)")
    parser.add_argument(
        "--out", metavar="FOLDER", default="build/gallery", help="folder of the site (default: build/gallery)"
    )
    parser.add_argument("--results", metavar="FOLDER", help="results of the benchmark (default: those of the package)")
    parser.add_argument(
        "--studies", metavar="FOLDER", help="studies on which claims are tested (default: sweeps/results, if there)"
    )
    parser.add_argument(
        "--cache",
        metavar="FOLDER",
        default="build/gallery-cache",
        help="folder for pictures, curves and floors, kept between runs (default: build/gallery-cache)",
    )

    def program() -> None:
        arguments = parser.parse_args()
        mathml("x")  # before anything is drawn: refuses where formulas cannot be typeset
        results, studies = (None if name is None else Path(name) for name in (arguments.results, arguments.studies))
        for name, folder in (("results", results), ("studies", studies)):
            if folder is not None and not folder.is_dir():
                raise ValueError(f"--{name} must be an existing folder, got {str(folder)!r}")
        every = list(definitions())
        chosen = None if arguments.pe is None else list(dict.fromkeys(arguments.pe.split(",")))
        if chosen == [""]:
            raise ValueError("--pe must be names of encodings with commas between them, got ''")
        for name in chosen or []:
            if name not in every:
                raise ValueError(unknown_name_message("--pe", every, name, listing=HELP_COMMAND))
        out, cache = Path(arguments.out), Path(arguments.cache)
        for name, folder in (("out", out), ("cache", cache)):
            if name == "out" or not folder.is_dir():  # a cache may have all that is needed
                require_writable(f"--{name}", folder)
        from pe_lab.gallery.gallery_data import STUDIES, GalleryData  # loads torch
        from pe_lab.gallery.site import write_site

        content = GalleryData.gather(results, STUDIES if studies is None else studies, cache, names=chosen)
        print("comparing all pairs of encodings and writing pages: a few minutes", flush=True)
        count = write_site(content, out)
        rows = sum(len(task.rows) for task in content.results.values())
        print(f"{out / 'index.html'}: {count} pages, from {rows} rows")

    run_program(program, (ValueError, OSError, ModuleNotFoundError))


if __name__ == "__main__":
    main()
