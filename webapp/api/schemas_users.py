"""What goes in and out of the API of users."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from aeo.users import LONGEST_NAME, User
from webapp.api.schemas import In


class UserIn(In):
    name: str = Field(min_length=1, max_length=LONGEST_NAME)
    role: Literal["viewer", "member", "admin"] = Field(
        description="viewer: looks; member: also submits, and changes their own; admin: everything."
    )


class UserOut(BaseModel):
    user: User


class UserTokenOut(BaseModel):
    user: User
    token: str = Field(description="Shown this once.")


class UsersOut(BaseModel):
    users: list[User]
