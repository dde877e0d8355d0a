"""What MkDocs calls while it builds the documentation site (see mkdocs.yml): pages as GitHub shows them, links to files
outside docs/, and docstrings with examples."""

import posixpath
from typing import Any
from xml.etree.ElementTree import Element

import griffe
from markdown import Markdown
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from tools.site_markdown import (
    ROOT,
    WITH_PAGES,
    as_page,
    as_python_markdown,
    linked_outside,
    page_of,
    public_names,
    slug,
    source_of,
    target_of,
    text_of,
    with_code_to_copy,
)


class _Links(Treeprocessor):
    """Turns links to files outside docs/ into links to their pages. MkDocs reports links that lead nowhere."""

    page = ""  # the page that is being rendered

    def run(self, root: Element) -> None:
        for element in root.iter():
            attribute = {"a": "href", "img": "src"}.get(element.tag, "")
            link = element.get(attribute)
            target = target_of(link, source_of(self.page)) if link else None
            if link and target and not link.startswith("#") and (ROOT / target[0]).exists():
                path = posixpath.relpath(page_of(target[0]), posixpath.dirname(self.page) or ".")
                element.set(attribute, f"{path}#{target[1]}" if target[1] else path)


class _LinksExtension(Extension):
    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        md.treeprocessors.register(_Links(md), "outside", 5)  # after links are read, before MkDocs checks them


class Docstrings(griffe.Extension):
    """Prepares docstrings for the reference."""

    def __init__(self) -> None:
        self._public = frozenset(public_names())

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = as_page(obj.docstring.value, self._public)
        if isinstance(obj, griffe.Function) and obj.overloads:
            # One signature: the last, which is the general one. The others are for type checkers.
            obj.parameters, obj.returns = obj.overloads[-1].parameters, obj.overloads[-1].returns
            obj.overloads = None


# -- hooks of MkDocs ---------------------------------------------------------------------------------------


def on_config(config: MkDocsConfig) -> None:
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    config.markdown_extensions.append(_LinksExtension())  # type: ignore[arg-type]


def on_files(files: Files, config: MkDocsConfig) -> None:
    pages = [source_of(file.src_uri) for file in files.documentation_pages()]
    in_nav = str(config.nav)
    for path in linked_outside([*pages, *WITH_PAGES]):
        uri = page_of(path)
        level = InclusionLevel.INCLUDED if uri in in_nav else InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, uri, content=text_of(path), inclusion=level))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    _Links.page = page.file.src_uri
    if page.file.inclusion is InclusionLevel.NOT_IN_NAV:
        page.meta["search"] = {"exclude": True}
    return as_python_markdown(markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return with_code_to_copy(html)
