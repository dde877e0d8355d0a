"""Writes checkpoints behind URLs: which files are there, and which of them earlier saves have left behind.

There are no locks: another machine may be writing to the same folder. So a save removes only what the checkpoint that
it has replaced consisted of, and leftovers that are at least a day older than the new checkpoint, by the clock of the
file system.
"""

from contextlib import suppress
from datetime import timedelta
from typing import Any

from leafwise.core.path import escape, shown_file
from leafwise.errors import FileError, warn
from leafwise.files.folders import shards
from leafwise.files.folders.shard_names import is_index_text, listed_shards, own_shards
from leafwise.files.limits import Limits
from leafwise.files.sources.folder import INDEX, MODEL, Folder
from leafwise.files.sources.remote import forget_cached, is_s3, is_web, parent_url, remote, retried, stamp_of
from leafwise.files.writing.destination import Destination
from leafwise.files.writing.remote_writer import RemoteOutput, RemoteTransaction, StagedUpload, remove
from leafwise.files.writing.writer import StagedCheck, unfinished_of

_ABANDONED = timedelta(days=1)


class RemoteDestination(Destination):
    """A place behind a URL."""

    def __init__(self, url: str) -> None:
        check_writable(url)
        self.whole = url
        self._files, self._inside = remote(url)
        self.name = self._inside.rpartition("/")[2]
        if not self.name or not url.endswith("/" + self.name):
            raise FileError(f"cannot write {shown_file(url)}: the URL must end in the name of a file")
        if is_s3(self._files) and "/" not in self._inside:
            raise FileError(f"cannot write {shown_file(url)}: the URL must have a bucket and the name of a file")
        if is_s3(self._files) and "//" in self._inside:
            raise FileError(
                f"cannot write {shown_file(url)}: there is an empty name between two slashes, and such folders cannot "
                "be listed; leave out one of the slashes"
            )
        self._former: set[str] = set()  # the shards of the checkpoint that is replaced
        self._other: dict[str, Any] = {}  # the version of the file of the other layout that is replaced

    def joined(self, file_name: str) -> str:
        return self.whole.removesuffix(self.name) + file_name

    def _inside_of(self, file_name: str) -> str:
        return str(self._inside).removesuffix(self.name) + file_name

    def _folder(self) -> Folder:
        folder = self._inside.rpartition("/")[0]
        return Folder(parent_url(self.whole), self._files, folder, Limits.none())

    def transaction(self, in_shards: bool | None, check_staged: StagedCheck, reads_back: bool) -> RemoteTransaction:
        def open_output(url: str) -> RemoteOutput:
            path = self._inside_of(url.removeprefix(self.joined("")))
            if is_s3(self._files) and not reads_back:
                from leafwise.files.sources.multipart import MultipartUpload

                return MultipartUpload(url, self._files, path)
            return StagedUpload(url, self._files, path)

        if in_shards is None:
            return RemoteTransaction(open_output, check_staged)
        self._other = stamp_of(self._facts(self._of_other_layout(in_shards)) or {})
        with suppress(FileError):  # an index that cannot be read lists no shards that may be removed
            self._former = listed_shards(self.index_text() or b"", [])
        return RemoteTransaction(open_output, check_staged, lambda: self._remove_earlier(bool(in_shards)))

    def longest_name(self) -> int:
        return 255

    def index_text(self) -> bytes | None:
        return self._text(self.name + INDEX) if self._facts(self.name + INDEX) else None

    def check_shards(self, names: list[str]) -> None:
        super().check_shards(names)
        if self._facts(names[0]):
            raise FileError(f"cannot write {shown_file(self.joined(names[0]))}: it exists; save again")

    def _facts(self, file_name: str) -> dict[str, Any] | None:
        """What the file system says about a file; None if it does not exist."""
        path = self._inside_of(file_name)

        def facts() -> dict[str, Any] | None:
            forget_cached(self._files, path)
            try:
                return dict(self._files.info(path))
            except FileNotFoundError:
                return None

        return retried(self.joined(file_name), facts, "write")

    def _text(self, file_name: str) -> bytes:
        source = self._folder().open(file_name)
        if source.size > shards.MAX_INDEX:
            raise source.error(0, "the index is too large")
        return bytes(source.read(0, source.size))

    # -- leftovers of earlier saves ------------------------------------------------------------------------

    def _remove_earlier(self, in_shards: bool) -> None:
        names = self._folder().names
        other = self._of_other_layout(in_shards)
        # Not what another process has written since: it may remove the new checkpoint for the same reason.
        is_earlier = other in names and stamp_of(self._facts(other) or {}) == self._other
        if is_earlier and (in_shards or is_index_text(self._text(other))):
            try:
                self._remove(other)
            except FileError as problem:
                reason = f"its name may still open the earlier one: {problem}"
                warn(escape(f"the new checkpoint is in place, but {reason}"))
                return  # without the index, its shards would look as if nothing used them
            names = [name for name in names if name != other]
        placed = self._written_at(self.name + INDEX if in_shards else self.name)
        if own := own_shards(self.name, names):
            texts = [self._text(name) for name in names if name.endswith(INDEX)]
            used = {shard for text in texts for shard in listed_shards(text, names)}
            for shard in own:
                if shard not in used and (shard in self._former or self._is_abandoned(shard, placed)):
                    self._remove(shard)
        for name in unfinished_of(self.name, names):
            if self._is_abandoned(name, placed):
                self._remove(name)
        if is_s3(self._files) and placed is not None:
            self._abort_uploads(placed)

    def _of_other_layout(self, in_shards: bool) -> str:
        """The name of a checkpoint in one file, or of the index of shards: what a save in the other layout replaces."""
        return str(self.name) if in_shards else f"{self.name}{INDEX}"

    def _remove(self, file_name: str) -> None:
        remove(self.joined(file_name), self._files, self._inside_of(file_name))

    def _written_at(self, file_name: str) -> Any:
        """When a file was written, by the clock of the file system; None if that is not known."""
        with suppress(Exception):  # file systems that do not know raise all kinds of errors
            return self._files.modified(self._inside_of(file_name))
        return None

    def _is_abandoned(self, file_name: str, placed: Any) -> bool:
        written = self._written_at(file_name)
        return placed is not None and written is not None and placed - written > _ABANDONED

    def _abort_uploads(self, placed: Any) -> None:
        """Aborts uploads of this checkpoint that a process began long ago and did not end: the store keeps their parts,
        which take up space though they are not visible."""
        from leafwise.files.sources.s3 import S3Object

        whole = S3Object(self.whole, self._files, self._inside)
        folder = whole.key.removesuffix(self.name)
        stem = self.name.removesuffix(".safetensors")
        with suppress(Exception):  # listing uploads needs a permission that saving does not need
            for upload in whole.uploads(folder + stem[:100]):
                file_name = str(upload["Key"]).removeprefix(folder)
                is_own = file_name in (self.name, self.name + INDEX) or own_shards(self.name, [file_name])
                if is_own and placed - upload["Initiated"] > _ABANDONED:
                    whole.once("abort_multipart_upload", Key=upload["Key"], UploadId=upload["UploadId"])


def check_writable(url: str) -> None:
    """Raises if nothing can be written to URLs of this kind."""
    if is_web(url):
        raise FileError(
            f"cannot write {shown_file(url)}: web servers are read-only; save to a file and upload it, or save to a "
            "store (s3://, gs://, …)"
        )


def local_path(url: str) -> str | None:
    """The path of a URL of this machine, such as file:///home/me/model.safetensors; None for other URLs."""
    if url.partition("://")[0].lower() not in ("file", "local"):
        return None
    _, path = remote(url)
    return str(path) + ("/" if url.endswith("/") and not path.endswith("/") else "")


def remote_target(url: str) -> str:
    """The URL of the file to write, which has a name of its own in a folder or a bucket. A URL that ends in / is a
    folder even if it does not exist: in most stores, folders are only a part of the names of files."""
    check_writable(url)
    files, inside = remote(url)
    is_folder = url.endswith("/") or "/" not in inside
    if not is_folder and not url.endswith(INDEX):
        is_folder = retried(url, lambda: bool(files.isdir(inside)), "write", opening=True)
    if not is_folder:
        return url
    return url + MODEL if url.endswith("://") else f"{url.rstrip('/')}/{MODEL}"
