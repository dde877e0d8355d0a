"""Why a remote file cannot be read, in plain words, and what to do."""

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


def reason(error: BaseException) -> str:
    """The reason and what to do; empty if the error is not one of those that are common.

    >>> reason(FileNotFoundError("x")), reason(ConnectionResetError("x"))[:33]
    ('there is no such file or folder; check the address', 'the connection was cut off; try a')
    """
    status = getattr(error, "status", None)
    if isinstance(status, int) and status >= 300:
        return _of_status(status)
    for cause in _causes(error):
        if said := _of_error(cause):
            return said
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


def _of_error(error: BaseException) -> str:
    # The classes of aiohttp are recognized by name, because it is imported only for web servers.
    names = {cls.__name__ for cls in type(error).__mro__}
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
    if isinstance(error, TimeoutError):
        return "the server did not answer in time; check the address, or try again later"
    if isinstance(error, ConnectionError) or names & {"ServerDisconnectedError", "ClientPayloadError"}:
        return "the connection was cut off; try again"
    if isinstance(error, FileNotFoundError):
        return "there is no such file or folder; check the address"
    if isinstance(error, PermissionError):
        return "access is denied; check your permissions and credentials"
    if "InvalidURL" in names:
        return "this is not a valid URL; check the address"
    return ""
