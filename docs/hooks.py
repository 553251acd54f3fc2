"""Hooks of the site: pages that are generated while it is built, and a check that it needs no network.

A line with a link that ends in `<!-- include -->` is replaced by that file of the repository, without its title.
On GitHub the link stands there.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from pe_lab.gallery.gallery_data import GalleryData
from pe_lab.gallery.gallery_page import STATIC, Page
from pe_lab.gallery.pages import pages
from pe_lab.gallery.site import assets

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "pe_lab"
PICTURES = ROOT / "sweeps/results/audit/pictures"
GALLERY = ROOT / "build/gallery-cache"  # pictures and curves, by what they depend on
STYLES = {".js": "javascripts", ".css": "stylesheets"}  # folders of the site
INCLUDE = re.compile(r"^The text is in \[(\S+)\]\(\.\./\1\)\. <!-- include -->$", re.MULTILINE)
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)\s]+)\)")
PICTURE = re.compile(r"(!\[[^\]\n]*\])\((?:docs/)?([^)\s]+)\)")
REMOTE = re.compile(
    r"<(?:script|img|iframe)[^>]+src=\"?https?:[^>]*>|<link[^>]+rel=\"?(?:stylesheet|preconnect)[^>]+https?:[^>]*>"
)
# where a file of the repository is on the site
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "sweeps/LOG.md": "findings.md",
    "sweeps/results/audit/table.md": "audit.md",
}

gallery: dict[str, Page] = {}  # of the build that goes on, by source


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace the script for searching without a server, which the theme loads from the network, by our own."""
    config.extra["polyfills"] = ["javascripts/file-worker.js"]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page of the API for each package, the pictures of the audit, and the gallery."""
    for package in sorted(path.parent for path in PACKAGE.glob("*/__init__.py")):
        files.append(File.generated(config, f"api/{package.name}.md", content=reference(package)))
    files.append(File.generated(config, "api/programs.md", content=programs()))
    for picture in PICTURES.glob("*.png"):
        files.append(File.generated(config, f"pictures/{picture.name}", abs_src_path=str(picture)))
    for path, data in of_gallery().items():
        files.append(File.generated(config, path, content=data))
    return files


def of_gallery() -> dict[str, bytes | str]:
    """Return the files of the gallery by path: pages as Markdown, pictures, tables, a script and a style sheet."""
    content = GalleryData.gather(cache=GALLERY, documented=True)
    gallery.clear()
    gallery.update({f"gallery/{page.path}.md": page for page in pages(content)})
    found: dict[str, bytes | str] = {path: page.markdown() for path, page in gallery.items()}
    found |= {f"gallery/{path}": data for path, data in assets(content).items()}
    return found | {f"{STYLES[path.suffix]}/{path.name}": path.read_text(encoding="utf-8") for path in STATIC.iterdir()}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Include files of the repository."""
    return INCLUDE.sub(lambda found: included(found[1]), markdown)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Put the tables and curves of a page of the gallery in their places."""
    found = gallery.get(page.file.src_uri)
    return html if found is None else found.filled(html)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Refuse a page that loads something from the network.

    Raises:
        PluginError: it does.
    """
    found = REMOTE.search(output)
    if found:
        raise PluginError(f"{page.file.src_uri} must load nothing from the network, got {found[0]}")
    return output


def reference(package: Path) -> str:
    """Return the API page of a package: each of its modules, the package itself first."""
    modules = [
        path.relative_to(ROOT).with_suffix("")
        for path in sorted(package.rglob("*.py"), key=lambda path: (path.parent, path.name != "__init__.py", path.name))
    ]
    dotted = [".".join(path.parts).removesuffix(".__init__") for path in modules if path.name != "__main__"]
    return "\n\n".join([f"# pe_lab.{package.name}", *(f"::: {name}" for name in dotted)])


def programs() -> str:
    """Return the API page of the programs."""
    found = sorted(path for path in PACKAGE.glob("*.py") if path.stem not in ("__init__", "__main__"))
    return "\n\n".join(["# Programs", *(f"::: pe_lab.{path.stem}" for path in found)])


def included(name: str) -> str:
    """Return a file of the repository as a part of a page."""
    text = (ROOT / name).read_text(encoding="utf-8")
    text = text.partition("\n")[2] if text.startswith("# ") else text
    text = PICTURE.sub(r"\1(\2)", text).replace("```bash test\n", "```bash\n")
    return LINK.sub(lambda link: linked(link[1], link[2], (ROOT / name).parent), text)


def linked(text: str, target: str, folder: Path) -> str:
    """Return a link of a file as it is on the site: to a page, or the path of a file that is not on it."""
    path, _, anchor = target.partition("#")
    resolved = (folder / path).resolve()
    inside = str(resolved.relative_to(ROOT))
    if inside in PAGES or inside.startswith("docs/"):
        page = PAGES.get(inside, inside.removeprefix("docs/"))
        return f"[{text}]({page}{f'#{anchor}' if anchor else ''})"
    return f"`{inside}`" if inside.endswith(text.strip("`")) else f"{text} (`{inside}`)"
