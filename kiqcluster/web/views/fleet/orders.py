"""Orders: what clusters and processes can be asked for on pages, and what became of it.

ORDERS          each order: its button, who may, what it says afterwards
to_cluster      to a supervisor, through one of its processes; it answers whether it does it
to_process      to one process: of ours, which shows its effect; of Ruby's, which reads it with its next beat

An order is sent and waited for as by kiqctl, but not as long: a message that nobody reads within ANSWER_SECONDS is
taken back, so that it does nothing later on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from werkzeug.exceptions import BadRequest

from kiqcluster.api.processes import RUBY_ACTIONS, Process, ProcessSet
from kiqcluster.control.control_messages import MAX_TEXT_CHARACTERS, Message, new_message
from kiqcluster.control.redis_transport import RedisTransport
from kiqcluster.control.transports import Answer, NoSuchProcess
from kiqcluster.errors import UsageError
from kiqcluster.ipc.stdio import clean
from kiqcluster.web.context import Context
from kiqcluster.web.i18n import message
from kiqcluster.web.users import Role

__all__ = ["CLUSTER_ORDERS", "LEASES", "PROCESS_ORDERS", "Order", "Outcome", "to_cluster", "to_process"]

ANSWER_SECONDS = 5.0
REQUESTER = "web"  # before the name of the user, in logs and on pages
LEASES = (
    ("", message("as configured")),
    ("300", "5m"),
    ("900", "15m"),
    ("3600", "1h"),
    ("14400", "4h"),
    ("0", message("no end")),
)


@dataclass(frozen=True, slots=True)
class Order:
    """button, told, question: messages; question: None where none is asked.  note: what the button means."""

    action: str
    button: str
    told: str
    note: str
    role: Role = Role.OPERATE
    question: str | None = None


QUIET = Order(
    "quiet",
    message("Quiet"),
    message("%(name)s fetches nothing more, until it is resumed or its lease ends."),
    message("fetch nothing more; running jobs go on"),
)
RESUME = Order("resume", message("Resume"), message("%(name)s fetches again."), message("fetch again"))
DUMP = Order(
    "dump",
    message("Stacks"),
    message("%(name)s was asked what its threads are doing."),
    message("show what each thread is doing"),
)
CLUSTER_ORDERS = {
    each.action: each
    for each in (
        QUIET,
        RESUME,
        Order(
            "roll",
            message("Roll"),
            message("%(name)s replaces its processes, one after the other."),
            message("replace every process by one with the newest code"),
        ),
        Order(
            "reload",
            message("Reload"),
            message("%(name)s reads its configuration anew."),
            message("read configuration and queue groups anew"),
        ),
        DUMP,
        Order(
            "stop",
            message("Stop"),
            message("%(name)s stops, with all of its processes."),
            message("end the supervisor and all of its processes"),
            Role.ADMIN,
            message("Stop %(name)s with all of its processes? Nothing starts it again from here."),
        ),
    )
}
PROCESS_ORDERS = {
    each.action: each
    for each in (
        QUIET,
        RESUME,
        DUMP,
        Order(
            "stop",
            message("Stop"),
            message("%(name)s stops; what still runs at its deadline goes back to its queue."),
            message("finish the running jobs and end; a supervisor starts another process in its place"),
            Role.ADMIN,
            message("Stop %(name)s? Its supervisor, if it has one, starts another process in its place."),
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an order, in the language of who gave it."""

    text: str
    has_failed: bool


def to_cluster(context: Context, name: str, order: Order, *, jid: str = "") -> Outcome:
    """Ask a cluster; wait for its answer.  jid: of the job whose process is to be killed."""
    message_ = replace(_message(context, order), jid=jid[:MAX_TEXT_CHARACTERS])
    transport = RedisTransport(context.store, supervisors=[name], answer_timeout=ANSWER_SECONDS)
    return _outcome(context, order, name, transport, message_)


def to_process(context: Context, identity: str, order: Order) -> Outcome:
    """Ask one process; wait until it has obeyed, unless it is Ruby's or embedded."""
    process = next((each for each in ProcessSet(store=context.store) if each.identity == identity), None)
    if process is None:
        return Outcome(context.gettext("%(name)s is gone.", name=identity), has_failed=True)
    if process.is_embedded:
        text = context.gettext("%(name)s runs inside of another program, which alone can do this.", name=identity)
        return Outcome(text, has_failed=True)
    if not process.is_ours:
        return _to_ruby(context, process, order)
    # A process that has not told its supervisor would be waited for; "" is the name of none.
    supervisors = [process.supervisor or ""]
    transport = RedisTransport(context.store, identity=identity, supervisors=supervisors, answer_timeout=ANSWER_SECONDS)
    return _outcome(context, order, identity, transport, _message(context, order))


def _to_ruby(context: Context, process: Process, order: Order) -> Outcome:
    if order.action not in RUBY_ACTIONS:
        raise BadRequest(context.gettext("A process of Ruby's Sidekiq cannot do this."))
    try:
        {"quiet": process.quiet, "stop": process.stop, "dump": process.dump}[order.action]()
    except UsageError as error:
        return Outcome(str(error), has_failed=True)
    if order.action == "dump":
        text = message("%(name)s writes its stacks to its own log with its next beat, within ten seconds.")
    else:
        text = message("%(name)s does this with its next beat, within ten seconds.")
    return Outcome(context.gettext(text, name=process.identity), has_failed=False)


def _outcome(context: Context, order: Order, name: str, transport: RedisTransport, asked: Message) -> Outcome:
    try:
        errors = _errors(transport.send(asked))
    except NoSuchProcess:
        return Outcome(context.gettext("%(name)s is gone.", name=name), has_failed=True)
    if errors:
        text = context.gettext("%(name)s: %(reason)s", name=name, reason="; ".join(errors))
        return Outcome(text, has_failed=True)
    return Outcome(context.gettext(order.told, name=name), has_failed=False)


def _errors(answers: Sequence[Answer]) -> list[str]:
    return [str(each.error).strip() for each in answers if each.error is not None]  # anybody may write answers


def _message(context: Context, order: Order) -> Message:
    """Return the message of an order.  Raises BadRequest for a lease that is none of the choices."""
    who = clean(context.user.name)[: MAX_TEXT_CHARACTERS // 2]
    return new_message(order.action, _lease(context) if order.action == "quiet" else None, name=REQUESTER, whom=who)


def _lease(context: Context) -> float | None:
    """Return the seconds of a quiet; None for the supervisor's own."""
    text = context.request.form.get("lease", "")
    if text not in dict(LEASES):
        raise BadRequest(context.gettext("This is no lease; choose one of the list."))
    return float(text) if text else None
