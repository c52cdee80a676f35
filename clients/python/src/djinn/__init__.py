"""Djinn's own API from Python: stop a model at any layer, look, change, go on. Chats go through the `openai` client."""

from .client import Djinn
from .errors import (
    ApiError,
    BadRequest,
    Conflict,
    DjinnError,
    NotFound,
    PauseNotReached,
    ServerError,
    ServerUnreachable,
    TooMuch,
    Unauthorized,
)
from .live import DeviceMemory, HostMemory, KvPages, Live, LiveModel, LiveSession
from .pause import Pause
from .push import Pushed
from .session import Session
from .steering import Edit, SteeringStore, steering
from .turn import Answer, Turn
from .types import (
    Breakpoint,
    Cache,
    Captures,
    EntropyCondition,
    Hook,
    LensRow,
    LensToken,
    PausedAt,
    ProbeCondition,
    Text,
    TokenCondition,
    Vector,
)

__all__ = [
    "Answer", "ApiError", "BadRequest", "Breakpoint", "Cache", "Captures", "Conflict", "DeviceMemory", "Djinn",
    "DjinnError", "Edit", "EntropyCondition", "Hook", "HostMemory", "KvPages", "LensRow", "LensToken", "Live", "LiveModel",
    "LiveSession", "NotFound", "Pause", "PauseNotReached", "PausedAt", "ProbeCondition", "Pushed", "ServerError",
    "ServerUnreachable", "Session", "SteeringStore", "Text", "TokenCondition", "TooMuch", "Turn", "Unauthorized",
    "Vector", "steering",
]
