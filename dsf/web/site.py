"""Renders whole pages, and checks the access of their viewers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import metadata, resources
from typing import Any, Final

import redis
from fastapi import Request
from fastapi.responses import HTMLResponse

from dsf.errors import AccessError, BackendError, QueryError, SettingsError
from dsf.process.valuecache import ValueCache
from dsf.web.access import ACT_RIGHT, READ_RIGHT, PageUser, Right, UserAccess
from dsf.web.actions import list_acts
from dsf.web.hubname import HubName
from dsf.web.pages import OPTIONAL_RIGHT_PARAMETER, PageView, Sources, load_plugins
from dsf.web.rendering import compute_digest, insert_ages, render
from dsf.web.sessions import Sessions, make_form_secret, read_cookie, set_cookie

#: Maximum characters of a page's query.
_MAX_QUERY_LENGTH: Final = 2000
#: Seconds between two polls of an open page.
_POLL_SECONDS: Final = 3
#: Seconds for which a rendering is reused. Less than `_POLL_SECONDS`, so that each poll of a viewer gets newer data.
_RENDERING_SECONDS: Final = 2.0
#: Maximum renderings in memory, because one has up to 400 kB.
_MAX_RENDERINGS: Final = 50


@dataclass(frozen=True)
class _Rendering:
    """The part of a page that is the same for all viewers."""

    title: str
    #: Text for the title and the icon of the tab, such as `2 failing`; empty without a failure.
    alert: str
    #: Seconds between two polls of an open page, 0 if it is not polled.
    poll_seconds: int
    html: str


class LoginNeededError(Exception):
    """Raised for a request without an authenticated user."""


class Site:
    """Renders pages, authenticates users and checks their rights."""

    def __init__(self, sources: Sources, access: UserAccess) -> None:
        self.sources = sources
        self.access = access
        self.sessions = Sessions(sources.reading.redis)
        self._renderings: ValueCache[str, _Rendering] = ValueCache(
            seconds=_RENDERING_SECONDS, max_entries=_MAX_RENDERINGS
        )
        self._hub_name = HubName(sources.settings, sources.session, sources.reading.fleet_queries)
        self.version = metadata.version("dynamic-scoring-framework")

    def authenticate(self, request: Request) -> PageUser | None:
        """Return the user of a request; None without a login.

        Raises AccessError if the request is refused, BackendError and redis.RedisError if this cannot be checked.
        """
        page_user: PageUser | None = request.scope.get("dsf.caller")
        if page_user is None:
            page_user = self.access.find_user(request)
            if page_user is None and self.access.login is not None:
                page_user = self._authenticate_session(request)
            request.scope["dsf.caller"] = page_user
        return page_user

    def authenticate_token(self, token: str, client: str) -> PageUser:
        """Return the holder of a token that a client sent or that opened a session.

        `client` is an address or the name of a session. Raises AccessError for an invalid token and BackendError if the
        token cannot be checked.
        """
        if self.access.login is None:
            raise AccessError("there is no login here", 401)
        try:
            return self.access.login(token, client)
        except SettingsError as error:
            raise BackendError(str(error)) from None

    def _authenticate_session(self, request: Request) -> PageUser | None:
        """Return the holder of the session's token; None without a session.

        Closes the session if its token is no longer valid, because a token may expire or be revoked after the login.
        """
        cookie = read_cookie(request)
        token = self.sessions.read_token(cookie)
        if not token:
            return None
        try:
            # Name the session instead of the client's address, because wrong tokens of other clients behind the same
            # proxy must not end this session.
            return self.authenticate_token(token, f"session {compute_digest(cookie)}")
        except AccessError as error:
            if error.status != 401:
                raise
        self.sessions.end(cookie)
        return None

    def allow(self, request: Request, right: Right) -> PageUser:
        """Return the user of a request if the user has this right and read access.

        Raises LoginNeededError without a login and AccessError without the right. Raises BackendError or
        redis.RedisError if this cannot be checked.
        """
        caller = self.authenticate(request)
        if caller is None:
            raise LoginNeededError("a login is required")
        # Every right requires read access, because users may only act on scorers that they may see.
        required_rights = dict.fromkeys((READ_RIGHT, right))
        if all(self.access.allows(caller, required) for required in required_rights):
            return caller
        if self.access.is_open:
            reason = "this page is read-only: start it with --allow-actions, or enable authentication (docs/web.md)"
            raise AccessError(reason, 403)
        text = " and ".join(f"`{required}`" for required in required_rights)
        raise AccessError(f"{caller.name} may not do this: it takes the right to {text}", 403)

    def render_view(self, view: PageView, request: Request) -> HTMLResponse:
        """Return the page of a view.

        Raises QueryError if the query is too long, the errors of `allow`, and the errors of the view.
        """
        caller = self.allow(request, view.required_right)
        if len(request.url.query) > _MAX_QUERY_LENGTH:
            raise QueryError(f"a query has at most {_MAX_QUERY_LENGTH} characters")
        root, names = request.scope["dsf.root"], request.path_params
        query = {name: text for name, text in request.query_params.items() if name in view.query_parameters}
        if view.optional_right and self.access.allows(caller, view.optional_right):
            query[OPTIONAL_RIGHT_PARAMETER] = str(view.optional_right)

        def render_content() -> _Rendering:
            context = {"every": _POLL_SECONDS if view.is_live else 0, **view.build(self.sources, names, query)}
            template_context = {**context, "options": self.sources.settings, "query": query}
            html = render(context.get("template", view.template), root, template_context)
            return _Rendering(context["title"], context.get("alert", ""), context["every"], html)

        if view.is_live:
            key = f"{root} {request.scope['path']} {sorted(query.items())}"
            # Render a page anew when it is opened, because users expect to see the effect of their last action. Polls
            # have the header If-None-Match and may reuse a rendering.
            rendering = self._renderings.get(key, render_content, is_new="if-none-match" not in request.headers)
        else:
            rendering = render_content()
        return self.respond(
            request,
            "page.html",
            title=rendering.title,
            alert=rendering.alert,
            every=rendering.poll_seconds,
            content=rendering.html,
            acts=list_acts() if view.has_actions and self.access.allows(caller, ACT_RIGHT) else {},
            names=names,
        )

    def respond_with_form(self, request: Request, template: str, status: int = 200, **context: Any) -> HTMLResponse:
        """Return a page with a form, and set the visitor's cookie, from which the secret of the form is derived."""
        cookie = read_cookie(request) or Sessions.create_cookie()
        response = self.respond(request, template, status, secret=make_form_secret(cookie), **context)
        set_cookie(request, response, cookie)
        return response

    def respond(self, request: Request, template: str, status: int = 200, **context: Any) -> HTMLResponse:
        """Return a whole page from a template that extends `base.html`; 304 if the browser already has this page."""
        caller = request.scope.get("dsf.caller")
        logout_secret = (
            make_form_secret(read_cookie(request)) if caller is not None and self.access.login is not None else ""
        )
        html = render(
            template,
            request.scope["dsf.root"],
            {
                "assets": digest_assets(),
                "version": self.version,
                "options": self.sources.settings,
                "q": request.query_params.get("q", "") if request.url.path.endswith("/find") else "",
                "path": request.scope["path"],
                "caller": caller,
                "leave": logout_secret,
                # Like the version, the name is only shown to users.
                "hub": self._hub_name.read() if caller is not None else "",
                "alert": "",
                "offered": self._list_offered_plugins(),
                **context,
            },
        )
        # The tag is computed before the ages are inserted, because the browser itself updates the ages.
        headers = {"ETag": f'"{compute_digest(html)}"'}
        # Weak tags are accepted, because a proxy that compresses a response weakens its tag.
        if status == 200 and request.headers.get("if-none-match", "").removeprefix("W/") == headers["ETag"]:
            return HTMLResponse(status_code=304, headers=headers)
        return HTMLResponse(insert_ages(html), status_code=status, headers=headers)

    def _list_offered_plugins(self) -> list[tuple[str, str]]:
        """Return path and title of each plug-in in the navigation; none if Redis is unreadable, as the page says."""
        try:
            return [
                (plugin.path, plugin.title)
                for plugin in load_plugins().values()
                if not plugin.is_tab and plugin.is_offered(self.sources)
            ]
        except redis.RedisError:
            return []


@cache
def digest_assets() -> str:
    """Return the digest of all static files."""
    files = sorted(resources.files("dsf.web").joinpath("static").iterdir(), key=lambda file: file.name)
    return compute_digest("".join(f"{file.name}{file.read_text(encoding='utf-8')}" for file in files))
