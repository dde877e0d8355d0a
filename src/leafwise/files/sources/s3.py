"""Files in stores that speak S3, through the client that s3fs has set up. Requests are made directly, because fsspec
has no way to ask for a version of an object, or to upload the parts of one in any order."""

import base64
import hashlib
import io
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from leafwise.files.sources.remote import CutOffError, RemoteSource, retried, run_async
from leafwise.files.sources.remote_reasons import s3_error

_MD5 = re.compile("[0-9a-f]{32}")


class Received(NamedTuple):
    """The ETag that a store gives to bytes it has received, without quotes, and whether it is their MD5."""

    etag: str
    is_md5: bool


class S3Object:
    """An object in a store, which may not exist yet. Requests are retried; errors name `url`."""

    def __init__(self, url: str, files: Any, path: str) -> None:
        self.url, self._files = url, files
        self.bucket, self.key, _ = files.split_path(path)

    def once(self, method: str, **arguments: Any) -> Any:
        """Makes a request, without retries other than those of the client."""
        return run_async(self._files, self.call(method, **arguments))

    async def call(self, method: str, **arguments: Any) -> Any:
        await self._files.set_session()
        client = await self._files.get_s3(self.bucket)
        operation = client.meta.service_model.operation_model(client.meta.method_to_api_mapping[method])
        # What the user has set for all requests: encryption, who pays.
        options = {**self._files.s3_additional_kwargs, **self._files.req_kw}
        options = {name: value for name, value in options.items() if name in operation.input_shape.members}
        return await getattr(client, method)(Bucket=self.bucket, **{**options, **arguments})

    def write(self, method: str, **arguments: Any) -> Any:
        """Makes a request that changes the object."""
        return retried(self.url, lambda: self.once(method, Key=self.key, **arguments), "write")

    def send(self, method: str, body: Any, **arguments: Any) -> Received:
        """Sends bytes, and returns what the store has received. Raises unless it has received the bytes
        that were sent, as far as the store says what it has received."""
        digest = hashlib.md5(body, usedforsecurity=False)
        checksum = base64.b64encode(digest.digest()).decode()

        def attempt() -> Received:
            # As a file, because aiohttp would send plain bytes at once, and could do nothing else meanwhile.
            answer = self.once(method, Key=self.key, Body=io.BytesIO(body), ContentMD5=checksum, **arguments)
            if self._has_md5(answer) and _etag(answer) != digest.hexdigest():
                raise CutOffError("the store has received other bytes than were sent; check the network")
            return Received(_etag(answer), self._has_md5(answer))

        return retried(self.url, attempt, "write")

    def _has_md5(self, answer: Mapping[str, Any]) -> bool:
        """Whether the ETag in a response is the MD5 of the bytes: not if they were encrypted by a key of the user, nor
        in buckets of the express kind."""
        is_encrypted = answer.get("SSECustomerAlgorithm") or "kms" in str(answer.get("ServerSideEncryption", ""))
        return not is_encrypted and not self.bucket.endswith("--x-s3") and _MD5.fullmatch(_etag(answer)) is not None

    def head(self) -> dict[str, Any] | None:
        """What the store says about the object; None if it does not exist."""

        def attempt() -> dict[str, Any] | None:
            try:
                answer: dict[str, Any] = self.once("head_object", Key=self.key)
                return answer
            except Exception as error:
                if s3_error(error)[0] in ("404", "NoSuchKey"):
                    return None
                raise

        return retried(self.url, attempt, "write")

    def complete(self, upload: str, received: list[Received], size: int) -> None:
        """Makes an object of the parts that were uploaded. If the response to an earlier attempt was lost, the upload
        is not there any more, and the object shows whether that attempt has succeeded."""
        parts = [{"PartNumber": number, "ETag": f'"{part.etag}"'} for number, part in enumerate(received, 1)]

        def attempt() -> None:
            try:
                self.once("complete_multipart_upload", Key=self.key, UploadId=upload, MultipartUpload={"Parts": parts})
            except Exception as error:
                if s3_error(error)[0] != "NoSuchUpload":
                    raise
                there = self.head()
                if there is None or there.get("ContentLength") != size or not is_etag(there, combined_etag(received)):
                    raise

        retried(self.url, attempt, "write")

    def uploads(self, prefix: str) -> Iterator[dict[str, Any]]:
        """The uploads that are neither complete nor aborted, of objects whose keys begin with `prefix`."""
        marker: dict[str, Any] = {}
        while True:
            answer = self.once("list_multipart_uploads", Prefix=prefix, **marker)
            yield from answer.get("Uploads", ())
            before = marker
            marker = {"KeyMarker": answer.get("NextKeyMarker"), "UploadIdMarker": answer.get("NextUploadIdMarker")}
            if not answer.get("IsTruncated") or marker == before:  # a store may repeat itself forever
                return


def combined_etag(received: list[Received]) -> str:
    """The ETag that stores give an object of several parts; empty if the ETags of the parts are not their MD5s.

    >>> combined_etag([Received("d41d8cd98f00b204e9800998ecf8427e", True)] * 2)
    '5873dd45edd01f09c1ef2e7819369e8e-2'
    """
    if not all(part.is_md5 for part in received):
        return ""
    digest = hashlib.md5(b"".join(bytes.fromhex(part.etag) for part in received), usedforsecurity=False)
    return f"{digest.hexdigest()}-{len(received)}"


def is_etag(there: Mapping[str, Any], expected: str) -> bool:
    """Whether an object has an ETag, as far as the ETags of this store can be compared: not every store computes those
    of objects with several parts in the same way."""
    pattern = r"[0-9a-f]{32}-\d+" if "-" in expected else r"[0-9a-f]{32}"
    return not expected or re.fullmatch(pattern, _etag(there)) is None or _etag(there) == expected


def _etag(answer: Mapping[str, Any]) -> str:
    return str(answer.get("ETag", "")).strip('"')


class S3Source(RemoteSource):
    """An object in a store. Only the version that was opened is read."""

    def __init__(self, url: str, files: Any, path: str, facts: Mapping[str, Any]) -> None:
        super().__init__(url, files, path, int(facts["size"] or 0), facts=facts)
        self._object = S3Object(url, files, path)
        self._etag = str(facts.get("ETag") or "")

    def request(self, start: int, stop: int) -> bytes:
        content, etag = run_async(self.files, self._object_range(start, stop))
        if self._etag and etag and etag.strip('"') != self._etag.strip('"'):
            raise self.error(start, _REPLACED)
        return content

    async def _object_range(self, start: int, stop: int) -> tuple[bytes, str]:
        version = {"IfMatch": self._etag} if self._etag else {}
        try:
            answer = await self._object.call(
                "get_object", Key=self._object.key, Range=f"bytes={start}-{stop - 1}", **version
            )
        except Exception as error:
            if s3_error(error)[0] in ("PreconditionFailed", "412"):
                raise self.error(start, _REPLACED) from error
            raise
        sent = str(answer.get("ContentRange", ""))
        try:
            if not sent.startswith(f"bytes {start}-") and (start, stop) != (0, self.size):
                raise self.error(start, "the store did not send the part of the file that was requested")
            return await answer["Body"].read(), str(answer.get("ETag", ""))
        finally:
            answer["Body"].close()

    def was_changed(self) -> bool:
        return False  # each response was of the version that was opened


_REPLACED = "the file in the store was replaced since it was opened; open it again"
