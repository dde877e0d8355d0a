"""Why a remote file cannot be read or written, in plain words, and what to do; and which reasons may pass."""

import socket
import ssl

_STATUS = {
    401: "the server asks for credentials (401); use a URL that contains them, or download the file first",
    403: "the server refuses access (403); check your permissions, and whether the URL has expired",
    404: "there is no such file on the server (404); check the address",
    407: "the proxy asks for credentials (407); check its settings",
    410: "the file was removed from the server (410); check the address",
    429: "the server has received too many requests (429); try again later",
}
# Codes in the errors of S3, which botocore keeps in the response.
_CREDENTIALS = "check the credentials in the environment, in ~/.aws or in fsspec's configuration"
_S3 = {
    "NoSuchBucket": "there is no such bucket; check the address and the endpoint",
    "AccessDenied": "access is denied; check your permissions and credentials",
    "AllAccessDisabled": "access is denied; check your permissions and credentials",
    "InvalidAccessKeyId": f"the store does not know this access key; {_CREDENTIALS}",
    "SignatureDoesNotMatch": f"the secret key does not belong to the access key; {_CREDENTIALS}",
    "ExpiredToken": f"the credentials have expired; {_CREDENTIALS}",
    "RequestTimeTooSkewed": "the clock of this machine differs from that of the store; set the clock",
    "SlowDown": "the store asks for fewer requests (SlowDown); try again later",
    "NoSuchUpload": "the store does not know the upload any more; save again",
    "EntityTooLarge": "the file is larger than the store allows; use shard_size=",
    "QuotaExceeded": "the quota of the store is used up; remove something, or ask for more",
}
_TRANSIENT_STATUS = {408, 425, 429, 500, 502, 503, 504}
_TRANSIENT_S3 = {
    "SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout", "Throttling", "ThrottlingException",
    "RequestLimitExceeded", "BandwidthLimitExceeded", "BadDigest", "IncompleteBody", "XAmzContentSHA256Mismatch",
    "OperationAborted",
}  # fmt: skip
# Classes of aiohttp, botocore and fsspec, by name, because they are imported only for some kinds of URLs.
_CUT_OFF = {
    "ServerDisconnectedError", "ClientPayloadError", "ConnectionClosedError", "ResponseStreamingError",
    "IncompleteReadError", "IncompleteRead",
}  # fmt: skip
_UNREACHABLE = {"ClientConnectorError", "EndpointConnectionError", "ProxyConnectionError"}
_TIMEOUTS = {"ReadTimeoutError", "ConnectTimeoutError", "FSTimeoutError"}


def is_transient(error: BaseException, opening: bool = False) -> bool:
    """Whether the same request may succeed a little later. `opening` is whether this is the first request to a server:
    if nobody answers, the address may be wrong.

    >>> is_transient(ConnectionResetError()), is_transient(PermissionError()), is_transient(FileNotFoundError())
    (True, False, False)
    """
    causes = _causes(error)
    names = {cls.__name__ for cause in causes for cls in type(cause).__mro__}
    codes, statuses = zip(*map(s3_error, causes), strict=True)
    if not _TRANSIENT_S3.isdisjoint(codes):
        return True
    if not _TRANSIENT_STATUS.isdisjoint((*statuses, *(getattr(cause, "status", None) for cause in causes))):
        return True
    if any(isinstance(cause, ssl.SSLError) for cause in causes) or names & {"ClientSSLError", "ClientResponseError"}:
        return False
    silent = ConnectionRefusedError | socket.gaierror | TimeoutError
    if any(isinstance(cause, silent) for cause in causes) or names & (_UNREACHABLE | _TIMEOUTS):
        return not opening
    is_cut_off = any(isinstance(cause, ConnectionError) for cause in causes)
    return is_cut_off or bool(names & (_CUT_OFF | {"ClientOSError", "FlexibleChecksumError"}))


def s3_error(error: BaseException) -> tuple[str, int | None]:
    """The code and the HTTP status of an error of botocore; empty and None for others."""
    response = getattr(error, "response", None)
    if not isinstance(response, dict) or not isinstance(response.get("Error"), dict):
        return "", None
    status = (response.get("ResponseMetadata") or {}).get("HTTPStatusCode")
    return str(response["Error"].get("Code", "")), status if isinstance(status, int) else None


def reason(error: BaseException) -> str:
    """The reason and what to do; empty if the error is not one of those that are common.

    >>> reason(FileNotFoundError("x")), reason(ConnectionResetError("x"))[:33]
    ('there is no such file or folder; check the address', 'the connection was cut off; try a')
    """
    status = getattr(error, "status", None)
    if isinstance(status, int) and status >= 300:
        return _of_status(status)
    causes = _causes(error)
    for cause in causes:  # first, because s3fs translates these to errors that say less
        code, status = s3_error(cause)
        if code in _S3:
            return _S3[code]
        if code and status is not None and status not in (200, 404):
            return _of_status(status) if code == str(status) else f"{_of_status(status)} ({code})"
    for cause in causes:
        if words := _of_error(cause):
            return words
    return ""


def _of_status(status: int) -> str:
    if status in _STATUS:
        return _STATUS[status]
    if status >= 500:
        return f"the server has a problem ({status}); try again later"
    if status < 400:
        return f"the server redirects too often ({status}); check the address"
    return f"the server refuses the request ({status}); check the address"


def _causes(error: BaseException) -> list[BaseException]:
    """The error and what caused it. aiohttp keeps the error of the system as an attribute."""
    causes: list[BaseException] = []
    pending: list[object] = [error]
    while pending and len(causes) < 10:
        cause = pending.pop(0)
        if isinstance(cause, BaseException) and cause not in causes:
            causes.append(cause)
            pending += [getattr(cause, "os_error", None), getattr(cause, "certificate_error", None), cause.__cause__]
    return causes


def _of_library(error: BaseException, names: set[str]) -> str:
    """The reason for an error of botocore, fsspec or leafwise."""
    if names & {"EndpointConnectionError", "ProxyConnectionError"}:
        return "the server cannot be reached; check the endpoint, and whether the server is running"
    if names & {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "TokenRetrievalError"}:
        return f"there are no credentials for this store; {_CREDENTIALS}"
    if "CutOffError" in names:
        return str(error)
    if isinstance(error, NotImplementedError):
        return "this kind of file system cannot do that; use another kind of URL, or a local file"
    return ""


def _of_error(error: BaseException) -> str:
    # The classes of aiohttp are recognized by name, because it is imported only for web servers.
    names = {cls.__name__ for cls in type(error).__mro__}
    if by_library := _of_library(error, names):
        return by_library
    host = getattr(error, "host", None)
    at = f" {host}" if isinstance(host, str) else ""
    if isinstance(error, ssl.SSLCertVerificationError) or "ClientConnectorCertificateError" in names:
        return f"the certificate of the server{at} cannot be verified; check the address and the clock of this machine"
    if isinstance(error, ssl.SSLError) or "ClientConnectorSSLError" in names:
        return f"no secure connection to the server{at} is possible; check whether its address begins with http://"
    if isinstance(error, socket.gaierror) or "ClientConnectorDNSError" in names:
        return f"the host name{at} cannot be resolved; check the address and your network connection"
    if isinstance(error, ConnectionRefusedError):
        return "the connection was refused; check the address and the port, and whether the server is running"
    if isinstance(error, TimeoutError) or names & _TIMEOUTS:
        return "the server did not answer in time; check the address, or try again later"
    if isinstance(error, ConnectionError) or names & _CUT_OFF:
        return "the connection was cut off; try again"
    if isinstance(error, FileNotFoundError):
        return "there is no such file or folder; check the address"
    if isinstance(error, PermissionError):
        return "access is denied; check your permissions and credentials"
    if "InvalidURL" in names:
        return "this is not a valid URL; check the address"
    return ""
