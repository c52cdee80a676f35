"""What goes wrong, as exceptions. All of them are :class:`DjinnError`."""

from __future__ import annotations

from typing import Any


class DjinnError(Exception):
    """Any failure of this package."""


class ServerUnreachable(DjinnError):
    """No answer came: the server is not there, or the connection broke."""


class PauseNotReached(DjinnError):
    """The session did not pause: its answer came to its end before, or the time ran out."""


class ApiError(DjinnError):
    """The server refused a request. Its message is the server's own."""

    def __init__(self, status: int, message: str, *, kind: str | None = None, code: str | None = None,
                 param: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(f"{status}: {message}" + (f" (field `{param}`)" if param else ""))
        #: The HTTP status.
        self.status = status
        #: The server's words.
        self.message = message
        #: `invalid_request_error`, `authentication_error`, `rate_limit_error` or `server_error`.
        self.kind = kind
        #: A name for programs, such as `session_not_found`.
        self.code = code
        #: The request's field at fault.
        self.param = param
        #: Seconds after which to try again.
        self.retry_after = retry_after


class BadRequest(ApiError):
    """400: a field means nothing, an unknown hook, a wrong width, a value that is not finite."""


class Unauthorized(ApiError):
    """401: the key is missing or wrong."""


class NotFound(ApiError):
    """404: there is no such session, model, breakpoint or vector."""


class Conflict(ApiError):
    """409: the session is in no state for this; most often, it is not paused."""


class TooMuch(ApiError):
    """413 or 429: more than the server has memory or places for now."""


class ServerError(ApiError):
    """5xx: the server cannot answer."""


_KINDS: dict[int, type[ApiError]] = {
    400: BadRequest, 401: Unauthorized, 404: NotFound, 409: Conflict, 413: TooMuch, 422: BadRequest, 429: TooMuch,
}


def of_answer(status: int, body: Any, text: str, retry_after: str | None) -> ApiError:
    """The exception for an answer of the server: its JSON, if it is some, and its text."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        error = {}
    message = error.get("message")
    if not isinstance(message, str):
        message = text.strip()[:200] or "no reason was given"
    kind = _KINDS.get(status, ServerError if status >= 500 else ApiError)
    try:
        seconds = float(retry_after) if retry_after else None
    except ValueError:
        seconds = None
    words = {name: value if isinstance(value := error.get(name), str) else None for name in ("type", "code", "param")}
    return kind(status, message, kind=words["type"], code=words["code"], param=words["param"], retry_after=seconds)
