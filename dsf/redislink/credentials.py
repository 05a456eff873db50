"""Redis credential provider, read again at each connect: a rotated password needs no restart."""

from __future__ import annotations

import redis
from redis.credentials import CredentialProvider

from dsf.errors import SettingsError
from dsf.redislink import address
from dsf.settings import Settings


class RedisCredentials(CredentialProvider):
    """Current user and password from the settings and the files that they name.

    `DSF_REDIS_PASSWORD_FILE` overrides the password in the URL, `DSF_REDIS_USERNAME` the user in it.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def get_credentials(self) -> tuple[()] | tuple[str] | tuple[str, str]:  # type: ignore[override]
        """For redis-py: nothing, a password, or user and password.

        Raises redis.AuthenticationError when a file cannot be used: the caller retries later, when it may
        exist.
        """
        try:
            username, password = self.read()
        except SettingsError as error:
            raise redis.AuthenticationError(str(error)) from None
        if username:
            return username, password
        return (password,) if password else ()

    def read(self) -> tuple[str, str]:
        """User and password; both may be empty. Raises SettingsError when a file cannot be used."""
        inside = address.parse(self._settings.resolved_redis_url())
        password = self._settings.resolved_redis_password()
        return self._settings.redis_username or inside.username, inside.password if password is None else password
