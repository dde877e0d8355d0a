"""Safe display of text from elsewhere: names in files, names of files, URLs, messages of other libraries.

A name can contain characters that move the cursor, hide the rest of a line, or reverse its direction, and a URL can
contain a password. Everything that leafwise outputs passes through `escape`: errors, results as text or HTML, printed
lines and `repr`. Names of files and URLs are formatted by `shown_file`. Only this module does this; a test checks that.
"""

import json
import re

HIDDEN = "***"
_URL = re.compile(r"""[A-Za-z][A-Za-z0-9+.-]*://[^\s'"<>]+""")
_PARTS = re.compile(
    r"(?P<scheme>[^:/?#]*://)(?P<host>[^/?#]*)(?P<path>[^?#]*)(?P<query>\?[^#]*)?(?P<fragment>#.*)?", re.DOTALL
)
_PORT = re.compile(r"(\[[^]]*\]|[^:]*)(:\d*)?")


def escape(text: str) -> str:
    """Text with invisible characters (control characters, bidi overrides) written as escapes.

    >>> print(escape("red\\x1b[31m"))
    red\\u001b[31m
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char, ensure_ascii=True)[1:-1] for char in text)


def shown_file(name: object) -> str:
    """The name of a file, or a URL without its secrets, in quotes, for use in a message.

    >>> print(shown_file("a\\nb.pt"), shown_file("https://me:secret@host/a.pt?token=secret"))
    'a\\nb.pt' 'https://***@host/a.pt?token=***'
    """
    return repr(shown_url(name) if isinstance(name, str) else name)


def shown_url(name: str) -> str:
    """A URL without user and password, without the values of its query and without its fragment; other names unchanged.

    >>> shown_url("s3://key:secret@bucket/model.pt"), shown_url("https://host:80/a?X-Amz-Signature=1f&b=#c")
    ('s3://***@bucket/model.pt', 'https://host:80/a?X-Amz-Signature=***&b=#***')
    """
    return name if not (parts := _PARTS.fullmatch(name)) else _without(parts)[0]


def without_secrets(text: str, url: str = "") -> str:
    """Text with the secrets of all URLs in it hidden, and the secrets of `url` wherever they occur."""
    secrets: list[str] = []
    if url and (parts := _PARTS.fullmatch(url)):
        shown, secrets = _without(parts)
        text = text.replace(url, shown)
    if "://" in text:
        text = _URL.sub(lambda match: shown_url(match[0]), text)
    if not secrets:
        return text
    from urllib.parse import unquote, unquote_plus  # late: this import is slow

    spellings = {spelling for secret in secrets for spelling in (secret, unquote(secret), unquote_plus(secret))}
    for secret in sorted(spellings, key=len, reverse=True):
        if len(secret) > 2:  # shorter strings occur in any text
            text = text.replace(secret, HIDDEN)
    return text


def _without(parts: "re.Match[str]") -> tuple[str, list[str]]:
    """A URL with its secrets hidden, and the secrets."""
    secrets: list[str] = []
    host, path, query, fragment = parts["host"], parts["path"], parts["query"] or "", parts["fragment"] or ""
    rest = path + query + fragment
    if "@" in rest and "@" not in host and not _PORT.fullmatch(host):
        # A password with a slash, or another character that should have been percent-encoded.
        user, _, after = (host + rest).rpartition("@")
        return f"{parts['scheme']}{HIDDEN}@{shown_url('x://' + after)[4:]}", [user]
    user, at, host = host.rpartition("@")
    if at:
        secrets += [user, *user.split(":", 1)[-1:]]
        user = HIDDEN
    pairs = []
    for part in re.split("([&;])", query.removeprefix("?")):
        key, equals, value = part.partition("=")
        if not equals and part not in ("&", ";"):
            key, value = "", part  # a query without keys is one value
        secrets += [value] if value else []
        pairs.append(key + equals + (HIDDEN if value else ""))
    if len(fragment) > 1:
        secrets.append(fragment[1:])
        fragment = "#" + HIDDEN
    return f"{parts['scheme']}{user}{at}{host}{path}{query[:1]}{''.join(pairs)}{fragment}", secrets
