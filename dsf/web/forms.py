"""Pages with forms: login and actions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final
from urllib.parse import parse_qsl

import redis
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import RedirectResponse

import dsf.log
from dsf.api.naming import MAX_NAME_LENGTH
from dsf.errors import AccessError, BackendError
from dsf.web import sessions
from dsf.web.access import ACT, PageUser
from dsf.web.actions import ActionRunner, all_acts, get_target_path
from dsf.web.pages import Act, ActionTarget, FormError
from dsf.web.rendering import link
from dsf.web.site import LoginNeededError, Site

log = dsf.log.get(__name__)

#: Most characters of a token.
MAX_TOKEN: Final = 16 * 1024
#: First values of fields.
_GIVEN: Final = {"seconds": "", "note": ""}


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form. Raises AccessError if it is too large (413) or has a field twice (400)."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > 32 * 1024:
            raise AccessError("this form is too large", 413)
    try:
        pairs = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=30)
    except ValueError:
        raise AccessError("this form has too many fields", 413) from None
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise AccessError("this form has a field twice", 400)
    return fields


def _named(name: str) -> Act:
    act = all_acts().get(name)
    if act is None:
        raise HTTPException(404)
    return act


#: The fields of a request's form, and the action that its path names.
Form = Annotated[dict[str, str], Depends(read_form)]
Named = Annotated[Act, Depends(_named)]


def add_login(app: FastAPI, site: Site) -> None:
    """Add the pages of login and logout."""

    def page(request: Request, status: int, problem: str, to: str) -> Response:
        return site.form(request, "login.html", status, title="Log in", problem=problem, to=to)

    @app.get("/login")
    def login(request: Request, to: str = "/", lost: str = "") -> Response:
        message = "Your session had ended, so nothing was done. Log in, then send it again." if lost else ""
        return page(request, 200, message, _own(to))

    @app.post("/login")
    def enter(request: Request, form: Form) -> Response:
        to, address = _own(form.get("to", "/")), request.client.host if request.client else ""
        try:
            if not sessions.is_form(request, form.get("secret", "")) and (user := _session_user(request, site)):
                # Logged in by another tab, whose login replaced the cookie that this form belongs to.
                log.info("already logged in", caller=user.name, client=address)
                return RedirectResponse(link(request.scope["dsf.root"], to), 303)
            sessions.check_form(request, form.get("secret", ""))
            token = form.get("token", "").strip()[:MAX_TOKEN]
            caller = site.holder(token, address)
        except AccessError as error:
            log.warning("login refused", client=address, reason=str(error))
            return page(request, error.status, str(error), to)
        except BackendError as error:
            log.warning("login cannot be checked", client=address, reason=str(error))
            return page(request, 503, "your login cannot be checked now; try again", to)
        log.info("logged in", caller=caller.name, client=address)
        site.sessions.close(sessions.cookie_of(request))
        entered = RedirectResponse(link(request.scope["dsf.root"], to), 303)
        sessions.set_cookie(request, entered, site.sessions.open(token))
        return entered

    @app.post("/logout")
    def leave(request: Request, form: Form) -> Response:
        sessions.check_form(request, form.get("secret", ""))
        site.sessions.close(sessions.cookie_of(request))
        response = RedirectResponse(link(request.scope["dsf.root"], "/login"), 303)
        sessions.delete_cookie(request, response)
        return response


def _session_user(request: Request, site: Site) -> PageUser | None:
    """Return the user of the request's session; None without a session, or if it cannot be checked."""
    try:
        return site.caller(request)
    except (AccessError, BackendError):
        return None


def add_acts(app: FastAPI, site: Site, acting: ActionRunner) -> None:
    """Add the pages of actions."""

    def page(
        request: Request,
        act: Act,
        target: ActionTarget,
        values: Mapping[str, str],
        problem: str = "",
        status: int = 200,
    ) -> Response:
        affected, unaffected = acting.affected(act.name, target)
        soon = (datetime.now(UTC) + timedelta(hours=2)).strftime("%Y-%m-%dT%H:%M")
        return site.form(
            request,
            "act.html",
            status,
            title=f"{act.title}: {target.scorer}",
            act=act,
            target=target,
            affected=affected,
            kept=unaffected,
            given={**_GIVEN, **act.values, "until": soon, **values},
            problem=problem,
            back=get_target_path(target),
            **acting.context(act.name, target),
        )

    def actor(request: Request, act: Act, target: ActionTarget, form: Mapping[str, str] | None = None) -> PageUser:
        """Who sends a form, or asks for one, and may act; who may not is logged."""
        try:
            caller = site.allow(request, ACT)
            if form is not None:
                sessions.check_form(request, form.get("secret", ""))
        except (AccessError, LoginNeededError, BackendError, redis.RedisError) as error:
            page_user: PageUser | None = request.scope.get("dsf.caller")
            log.warning(
                "act refused",
                caller=page_user.name if page_user else "",
                act=act.name,
                # Unauthenticated clients may send anything.
                scorer=target.scorer[:MAX_NAME_LENGTH],
                cluster=(target.cluster or "*")[:MAX_NAME_LENGTH],
                client=request.client.host if request.client else "",
                reason=str(error),
            )
            raise
        return caller

    @app.get("/act/{name}")
    def preview(request: Request, act: Named, scorer: str, cluster: str = "") -> Response:
        target = ActionTarget(scorer, cluster or None)
        actor(request, act, target)
        return page(request, act, target, {})

    @app.post("/act/{name}")
    def done(request: Request, act: Named, form: Form) -> Response:
        target = ActionTarget(form.get("scorer", ""), form.get("cluster", "") or None)
        caller = actor(request, act, target, form)
        try:
            acting.affected(act.name, target)
            path, query = acting.do(act.name, target, form, caller)
        except FormError as error:
            return page(request, act, target, form, str(error), 422)
        cluster, root = target.cluster or "*", request.scope["dsf.root"]
        log.info("done on the page", act=act.name, caller=caller.name, scorer=target.scorer, cluster=cluster)
        return RedirectResponse(link(root, path, **query), 303)


def _own(to: str) -> str:
    """`place` if it is a path of this site, else the first page."""
    return to if to.startswith("/") and not to.startswith("//") and "\\" not in to and to.isprintable() else "/"
