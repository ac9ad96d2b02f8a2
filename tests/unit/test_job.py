"""Jobs: how they are declared, and what is refused while that happens."""

from __future__ import annotations

import copy
import functools
import pickle
import sys
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, get_type_hints

import pytest

from kiqcluster.application.options import OPTIONS, JobOptions, PushOptions
from kiqcluster.application.registry import Registry
from kiqcluster.client.client import Client
from kiqcluster.contrib.celery import Celery
from kiqcluster.errors import InvalidArguments, InvalidPush, JobDefinitionError
from kiqcluster.job import DISCARD, KILL, RESERVED_NAMES, Job, job
from kiqcluster.process.runtime import Push, Run, Setup
from kiqcluster.sidekiq.outcome import Done, Outcome

pytestmark = pytest.mark.usefixtures("registry")


def refusal(declare: Callable[[], object]) -> str:
    with pytest.raises(JobDefinitionError) as caught:
        declare()
    return str(caught.value)


def declare(name: str = "X", /, **options: Any) -> type[Job]:
    """Return a job class of that name and options."""

    class Declared(Job, name=name, **options):
        def perform(self, a: int = 0) -> None: ...

    return Declared


class TestDeclaration:
    def test_a_class_is_registered_under_its_name(self, registry: Registry) -> None:
        class Thumbnail(Job, queue="images", retry=5):
            def perform(self, path: str, width: int) -> None: ...

        definition = registry.get("Thumbnail")
        assert definition is Thumbnail.definition
        assert (definition.queue, Thumbnail.queue) == ("images", "images")
        assert definition.options == {"retry": 5, "queue": "images"}
        assert list(definition.signature.parameters) == ["path", "width"]

    def test_a_function_is_registered_under_its_name_and_stays_one(self, registry: Registry) -> None:
        @job(queue="mailers")
        def welcome(user_id: int) -> str:
            """Greet."""
            return f"hello {user_id}"

        assert registry.get("welcome") is welcome.definition
        assert welcome(7) == "hello 7"
        assert welcome.queue == "mailers"
        assert (welcome.__name__, welcome.__doc__, welcome.__module__) == ("welcome", "Greet.", __name__)

    @pytest.mark.parametrize("decorate", [job, Celery("shop").task], ids=["job", "task"])
    def test_a_job_is_pickled_copied_and_described_as_its_function_is(
        self, decorate: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """So a pool of processes takes it, a structure that holds it can be copied, and typer reads its parameters."""

        def add(left: int, right: int) -> int:
            return left + right

        add.__qualname__ = "add"
        declared = decorate(add)
        monkeypatch.setattr(sys.modules[__name__], "add", declared, raising=False)

        assert pickle.loads(pickle.dumps(declared)) is declared  # our own bytes
        assert copy.deepcopy([declared]) == [declared]
        assert get_type_hints(declared) == {"left": int, "right": int, "return": int}

    def test_the_decorator_needs_no_parentheses(self, registry: Registry) -> None:
        @job
        def welcome(user_id: int) -> str:
            return f"hello {user_id}"

        assert registry.get("welcome") is welcome.definition
        assert welcome(7) == "hello 7"

    def test_the_name_on_the_wire_may_be_another(self, registry: Registry) -> None:
        @job(name="Acme::WelcomeMail")
        def welcome(user_id: int) -> None: ...

        declare("Acme::Other")

        assert {definition.name for definition in registry} == {"Acme::WelcomeMail", "Acme::Other"}

    def test_without_options_it_is_retried_and_on_the_default_queue(self) -> None:
        assert declare().definition.options == {"retry": True, "queue": "default"}

    def test_retry_and_queue_travel_first_as_ruby_writes_them(self) -> None:
        options = declare(tags=["a"], backtrace=5, queue="q", retry=3).definition.options

        assert list(options)[:2] == ["retry", "queue"]
        assert options == {"retry": 3, "queue": "q", "tags": ["a"], "backtrace": 5}

    def test_options_that_stay_here_do_not_travel(self) -> None:
        definition = declare(max_retries_after_interruption=2, queue_namespace="cronjob").definition

        assert set(definition.options) == {"retry", "queue"}
        assert definition.local["max_retries_after_interruption"] == 2

    @pytest.mark.parametrize("kind", [staticmethod, classmethod])
    def test_perform_may_be_a_static_or_class_method(self, kind: Callable[..., Any]) -> None:
        if kind is staticmethod:

            class Form(Job):
                @staticmethod
                def perform(a: int, b: int = 2) -> int:
                    return a + b
        else:

            class Form(Job):  # type: ignore[no-redef]
                @classmethod
                def perform(cls, a: int, b: int = 2) -> int:
                    return a + b

        _, perform = Form.definition.prepare()

        assert list(Form.definition.signature.parameters) == ["a", "b"]
        assert perform(1) == 3

    def test_each_run_gets_an_instance_of_its_own(self) -> None:
        prepare = declare().definition.prepare

        assert prepare()[0] is not prepare()[0]

    def test_a_perform_whose_decorator_hides_its_parameters_takes_any_arguments(self) -> None:
        class Wrapped(Job):
            @with_session
            def perform(self, session: str, a: int, b: int = 2) -> None: ...

        assert Wrapped.definition.positional((1, 2, 3), {}) == [1, 2, 3]
        assert Wrapped.definition.fits([1, 2, 3]) is None


def with_session(method: Callable[..., Any]) -> Callable[..., Any]:
    """Give a method an argument of the decorator's own."""

    @functools.wraps(method)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        return method(self, "session", *args, **kwargs)

    return wrapper


class TestNamespaces:
    def test_it_stands_before_the_name(self, registry: Registry) -> None:
        @job(namespace="Billing")
        def welcome(user_id: int) -> None: ...

        class Invoice(Job, namespace="Billing"):
            def perform(self) -> None: ...

        assert {definition.name for definition in registry} == {"Billing::welcome", "Billing::Invoice"}

    def test_two_applications_may_have_functions_of_one_name(self, registry: Registry) -> None:
        for application in ("Billing", "Shop"):

            def welcome() -> None: ...

            welcome.__module__ = application.lower()
            job(namespace=application)(welcome)

        assert {definition.name for definition in registry} == {"Billing::welcome", "Shop::welcome"}

    def test_without_it_the_error_names_both_and_the_remedy(self) -> None:
        def both() -> None:
            for application in ("billing", "shop"):

                def welcome() -> None: ...

                welcome.__module__ = application
                job(welcome)

        message = refusal(both)

        assert "billing." in message
        assert "shop." in message
        assert "namespace=" in message

    def test_a_base_class_gives_it_to_all_of_its_jobs(self) -> None:
        class BillingJob(Job, namespace="Billing"):
            pass

        class Invoice(BillingJob):
            def perform(self) -> None: ...

        class Reminder(Invoice, name="Acme::Reminder"):
            pass

        class Dunning(Invoice, namespace="Dunning"):
            pass

        names = [each.definition.name for each in (Invoice, Reminder, Dunning)]
        assert names == ["Billing::Invoice", "Acme::Reminder", "Dunning::Dunning"]

    def test_the_queue_of_a_namespace_is_named_after_the_whole_name(self) -> None:
        class Invoice(Job, namespace="Billing", queue_namespace="cronjob"):
            def perform(self) -> None: ...

        assert Invoice.queue == "cronjob:billing_invoice"

    @pytest.mark.parametrize("namespace", ["", "a\nb", "\x00"])
    def test_what_is_none_is_refused(self, namespace: str) -> None:
        def welcome() -> None: ...

        assert "namespace" in refusal(lambda: job(namespace=namespace)(welcome))

    def test_a_name_is_the_whole_name_already(self) -> None:
        def welcome() -> None: ...

        assert "namespace" in refusal(lambda: job(name="Welcome", namespace="Billing")(welcome))


def test_what_type_checkers_know_is_the_table_of_options() -> None:
    assert JobOptions.__annotations__.keys() == OPTIONS.keys()
    of_a_push = {name for name, option in OPTIONS.items() if option.on_wire} | {"wait_replicas"}
    assert PushOptions.__annotations__.keys() == of_a_push


class TestOptions:
    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("queue", "mails"),
            ("retry", True),
            ("retry", False),
            ("retry", 0),
            ("retry", 25),
            ("retry_for", 3_600),
            ("retry_queue", "slow"),
            ("backtrace", True),
            ("backtrace", 10),
            ("dead", False),
            ("tags", []),
            ("tags", ["a", "b"]),
            ("log_level", "debug"),
            ("queue_namespace", "cronjob"),
            ("max_retries_after_interruption", 0),
            ("wait_replicas", 1),
            ("concurrency_limit", 5),
            ("concurrency_limit", -1),
            ("concurrency_limit", "12.5%"),
            ("concurrency_limit", lambda: 3),
            ("retry_in", lambda count, error, payload: 5),
            ("retries_exhausted", lambda payload, error: None),
        ],
    )
    def test_a_value_that_fits_is_taken(self, option: str, value: Any) -> None:
        definition = declare(**{option: value}).definition

        taken = {**definition.options, **definition.local}[option]
        assert taken == value
        assert type(taken) is type(value)  # True is no 1

    def test_a_key_without_a_limit_is_refused(self) -> None:
        declare(concurrency_limit=1, concurrency_key=lambda account: account)

        assert "no effect" in refusal(lambda: declare("Y", concurrency_key=lambda account: account))

    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("queue", ""),
            ("queue", 5),
            ("queue", None),
            ("retry", -1),
            ("retry", "yes"),
            ("retry", 2.5),
            ("retry", None),
            ("retry_for", -1),
            ("retry_for", 10**9),
            ("retry_for", "1h"),
            ("retry_queue", ""),
            ("retry_queue", "a b"),
            ("backtrace", -1),
            ("backtrace", "all"),
            ("dead", 0),
            ("dead", "no"),
            ("tags", "vip"),
            ("tags", ("a",)),
            ("tags", ["a", 5]),
            ("tags", [""]),
            ("log_level", "INFO"),
            ("log_level", 10),
            ("wait_replicas", True),
            ("queue_namespace", ""),
            ("max_retries_after_interruption", -2),
            ("concurrency_limit", True),
            ("concurrency_limit", 2.5),
            ("concurrency_limit", "5"),
            ("concurrency_limit", "0%"),
            ("concurrency_limit", "101%"),
            ("concurrency_key", "account"),
            ("retry_in", 60),
            ("retries_exhausted", "log"),
        ],
    )
    def test_a_value_that_does_not_fit_is_refused_with_what_would(self, option: str, value: Any) -> None:
        message = refusal(lambda: declare("Acme::Job", **{option: value}))

        assert message.startswith(f"Acme::Job: {option} = {value!r}")
        assert OPTIONS[option].expected in message

    def test_an_unknown_option_is_refused_with_the_nearest_known_one(self) -> None:
        assert "did you mean 'queue'?" in refusal(lambda: declare(quue="x"))

    def test_an_option_like_no_other_is_refused_with_all_that_there_are(self) -> None:
        message = refusal(lambda: declare(xyzzy=1))

        assert all(option in message for option in OPTIONS)

    def test_functions_have_the_same_options(self) -> None:
        assert "did you mean 'retry'?" in refusal(lambda: job(retri=3)(refusal))

    def test_options_of_a_base_without_perform_are_checked_where_they_stand(self) -> None:
        def base() -> None:
            class Base(Job, queeu="x"): ...

        assert "did you mean 'queue'?" in refusal(base)

    @pytest.mark.parametrize("name", ["a\nb", "\x00", "\x7f"])
    def test_a_name_that_cannot_be_printed_is_refused(self, name: str) -> None:
        assert "not a valid name for a job" in refusal(lambda: declare(name))

    @pytest.mark.parametrize("queue", ["a\nb", "\x00"])
    def test_a_queue_name_that_cannot_be_printed_is_refused(self, queue: str) -> None:
        assert "control characters" in refusal(lambda: declare(queue=queue))

    @pytest.mark.parametrize(
        "options", [{"queue": "a b"}, {"queue": "a,b"}, {"queue": "*"}, {"queue_namespace": "a=1", "queue": "x"}]
    )
    def test_a_queue_name_that_no_group_can_name_is_refused(self, options: dict[str, str]) -> None:
        assert "queue group" in refusal(lambda: declare(**options))


class TestNamespace:
    def test_a_queue_of_its_own_is_put_into_the_namespace(self) -> None:
        assert declare(queue_namespace="cronjob", queue="nightly").queue == "cronjob:nightly"

    def test_the_resolved_queue_is_what_travels(self) -> None:
        assert declare("Nightly", queue_namespace="cronjob").definition.options["queue"] == "cronjob:nightly"


class TestInheritance:
    def test_options_are_inherited_and_may_be_replaced_one_by_one(self) -> None:
        class Base(Job, queue="slow", retry=3, tags=["base"]): ...

        class Child(Base, retry=9):
            def perform(self) -> None: ...

        assert Child.definition.options == {"retry": 9, "queue": "slow", "tags": ["base"]}

    def test_a_base_without_perform_is_no_job(self, registry: Registry) -> None:
        class Base(Job, queue="slow"): ...

        assert len(registry) == 0

    def test_the_name_is_not_inherited(self, registry: Registry) -> None:
        class First(Job, name="Acme::First", queue="slow"):
            def perform(self) -> None: ...

        class Second(First): ...

        assert {each.name: each.queue for each in registry} == {"Acme::First": "slow", "Second": "slow"}

    def test_options_of_a_child_do_not_change_its_base(self) -> None:
        class First(Job, queue="slow"):
            def perform(self) -> None: ...

        class Second(First, queue="fast"): ...

        assert (First.queue, Second.queue) == ("slow", "fast")

    def test_a_namespace_is_inherited(self) -> None:
        class Cron(Job, queue_namespace="cronjob"): ...

        class Nightly(Cron):
            def perform(self) -> None: ...

        assert Nightly.queue == "cronjob:nightly"

    def test_hooks_are_inherited(self) -> None:
        class Base(Job):
            def retry_in(self, count: int, error: Exception, payload: dict[str, Any]) -> int:
                return 42

        class Child(Base):
            def perform(self) -> None: ...

        hook = Child.definition.retry_in
        assert hook is not None
        assert hook(0, ValueError(), {}) == 42


class TestHooks:
    def test_a_class_may_answer_by_method_static_method_or_option(self) -> None:
        class Method(Job):
            factor: ClassVar[int] = 2

            def perform(self) -> None: ...
            def retry_in(self, count: int, error: Exception, payload: dict[str, Any]) -> int:
                return self.factor * count

        class Static(Job):
            def perform(self) -> None: ...
            @staticmethod
            def retry_in(count: int, error: Exception, payload: dict[str, Any]) -> object:
                return KILL

        option = declare(retry_in=lambda count, error, payload: DISCARD)

        hooks = [each.definition.retry_in for each in (Method, Static, option)]
        assert [hook and hook(3, ValueError(), {}) for hook in hooks] == [6, KILL, DISCARD]

    def test_retries_exhausted_gets_payload_and_error(self) -> None:
        heard: list[Any] = []

        class Last(Job):
            def perform(self) -> None: ...
            def retries_exhausted(self, payload: dict[str, Any], error: Exception) -> None:
                heard.append((payload, error))

        error = ValueError()
        hook = Last.definition.retries_exhausted
        assert hook is not None
        hook({"a": 1}, error)

        assert heard == [({"a": 1}, error)]
        assert hook.__name__.endswith("Last.retries_exhausted"), "what an error handler is told when it fails"

    def test_without_hooks_there_are_none(self) -> None:
        assert declare().definition.retry_in is None
        assert declare().definition.retries_exhausted is None

    def test_the_verdicts_show_their_names(self) -> None:
        assert (repr(DISCARD), repr(KILL)) == ("DISCARD", "KILL")


class TestRefused:
    def test_keyword_only_parameters(self) -> None:
        def by_keyword() -> None:
            @job()
            def broken(a: int, *, b: int = 1) -> None: ...

        def by_any_keyword() -> None:
            class Broken(Job):
                def perform(self, **options: int) -> None: ...

        assert "b: 'int' = 1 can only be passed by keyword" in refusal(by_keyword)
        assert "**options" in refusal(by_any_keyword)

    def test_an_active_job_has_them_for_its_envelope_has_keywords(self, registry: Registry) -> None:
        @job(active_job=True)
        def sample(a: int, *, b: int = 1, **options: int) -> tuple[Any, ...]:
            return a, b, options

        assert sample.perform_inline(1) == (1, 1, {})
        assert sample.perform_inline(a=1, b=2, c=3) == (1, 2, {"c": 3})
        for wrong in (lambda: sample.perform_inline(), lambda: sample.perform_inline(1, 2)):  # type: ignore[call-arg]
            with pytest.raises(InvalidArguments, match="sample was not enqueued"):
                wrong()

    def test_async_generators_which_would_never_run(self) -> None:
        def function() -> None:
            @job()
            async def broken() -> AsyncIterator[int]:
                yield 1

        def method() -> None:
            class Broken(Job):
                async def perform(self) -> AsyncIterator[int]:
                    yield 1

        assert "yield" in refusal(function)
        assert "yield" in refusal(method)

    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("retry", 3),
            ("retry", False),
            ("tags", ["vip"]),
            ("dead", False),
            ("backtrace", True),
            ("urgency", "high"),
            ("wait_replicas", 1),
            ("queue_namespace", "cronjob"),
            ("active_job", True),
        ],
    )
    def test_options_in_the_body_of_a_class_where_nothing_reads_them(self, option: str, value: object) -> None:
        mixin = type("Mixin", (), {option: value})

        message = refusal(lambda: type("Thumbnail", (Job,), {"perform": lambda self: None, option: value}))

        assert f"class Thumbnail(Job, {option}={value!r})" in message
        assert option in refusal(lambda: type("Mixed", (mixin, Job), {"perform": lambda self: None}))
        assert option in refusal(lambda: type("Base", (Job,), {option: value}))

    def test_a_method_or_property_with_the_name_of_an_option_is_the_applications_own(self) -> None:
        class Own(Job):
            def perform(self) -> None: ...

            def retry(self) -> None: ...

            @property
            def tags(self) -> list[str]:
                return []

            @classmethod
            def dead(cls) -> None: ...

        assert Own.definition.options == {"retry": True, "queue": "default"}

    @pytest.mark.parametrize("hook", ["retry_in", "retries_exhausted"])
    def test_a_hook_that_is_no_method(self, hook: str) -> None:
        assert f"def {hook}(self, " in refusal(
            lambda: type("Thumbnail", (Job,), {"perform": lambda self: None, hook: 60})
        )

    @pytest.mark.parametrize(
        ("slip", "hook"),
        [
            ("retries_exhaused", "retries_exhausted"),
            ("retries_exausted", "retries_exhausted"),
            ("sidekiq_retry_in", "retry_in"),
            ("sidekiq_retries_exhausted", "retries_exhausted"),
        ],
    )
    def test_a_method_with_nearly_the_name_of_a_hook(self, slip: str, hook: str) -> None:
        body = {"perform": lambda self: None, slip: lambda self, *facts: 60}

        assert f"the hook is {hook!r}" in refusal(lambda: type("Thumbnail", (Job,), body))

    def test_the_options_of_a_ruby_class(self) -> None:
        body = {"perform": lambda self: None, "sidekiq_options": {"retry": 3, "queue": "low"}}

        assert "class Thumbnail(Job, retry=3, queue='low')" in refusal(lambda: type("Thumbnail", (Job,), body))

    def test_a_perform_that_is_no_method(self) -> None:
        assert "write def perform" in refusal(lambda: type("Thumbnail", (Job,), {"perform": 3}))

    @pytest.mark.parametrize(
        ("word", "hint"),
        [
            ("retries", "retries is here: retry (docs/guides/retries.md in the sdist)"),
            ("queue_name", "is here: queue"),
            ("time_limit", "time_limit of Celery is here: timeout_hard"),
            ("countdown", "is here: perform_in(seconds, …)"),
            ("eta", "is here: perform_at(time, …)"),
        ],
    )
    def test_words_of_other_job_systems_are_told_ours(self, word: str, hint: str) -> None:
        class Thumbnail(Job):
            def perform(self) -> None: ...

        assert hint in refusal(lambda: Thumbnail.set(**{word: 3}))  # type: ignore[arg-type]
        assert hint in refusal(lambda: declare("Y", **{word: 3}))

    def test_a_lambda_for_it_has_no_name(self) -> None:
        assert "write a def" in refusal(lambda: job(lambda: None))
        assert job(name="named")(lambda: 5)() == 5

    def test_a_method_for_a_worker_has_no_instance_of_it(self, registry: Registry) -> None:
        def in_a_class() -> None:
            class Shop:
                @job
                def send_mail(self, user_id: int) -> None: ...

        message = refusal(in_a_class)

        assert "Shop.send_mail" in message
        assert "class SendMail(Job)" in message
        assert len(registry) == 0

    @pytest.mark.parametrize("reserved", sorted(RESERVED_NAMES))
    def test_attributes_that_would_hide_a_verb(self, reserved: str) -> None:
        def with_perform() -> None:
            type("Broken", (Job,), {"perform": lambda self: None, reserved: "x"})

        def without_perform() -> None:
            type("Base", (Job,), {reserved: "x"})

        assert f"Broken.{reserved}" in refusal(with_perform)
        assert f"Base.{reserved}" in refusal(without_perform)

    def test_a_class_of_which_no_worker_can_make_an_instance(self) -> None:
        def broken() -> None:
            class Mail(Job):
                def __init__(self, sender: str) -> None: ...

                def perform(self) -> None: ...

        assert "Mail.__init__: missing a required argument: 'sender'" in refusal(broken)

    def test_a_queue_in_the_body_of_the_class_with_the_way_to_write_it(self) -> None:
        def broken() -> None:
            class Mail(Job):
                queue = "mails"

                def perform(self) -> None: ...

        assert 'write class Mail(Job, queue="…")' in refusal(broken)

    @pytest.mark.parametrize(
        "verb", ["perform_async", "perform_in", "perform_at", "perform_bulk", "perform_inline", "set"]
    )
    def test_verbs_of_a_base_without_perform(self, verb: str) -> None:
        class Base(Job, queue="slow"): ...

        for base in (Base, Job):
            use = getattr(base, verb)
            message = refusal(use if verb in ("perform_async", "perform_inline", "set") else lambda use=use: use([]))
            assert f"{base.__qualname__} is not a job" in message

    @pytest.mark.parametrize("target", [int, object(), functools.partial(print), lambda: None, "x"])
    def test_only_functions_are_decorated(self, target: Any) -> None:
        if callable(target) and getattr(target, "__name__", "") == "<lambda>":
            job(name="fine")(target)
        else:
            assert "@job decorates a function" in refusal(lambda: job()(target))

    def test_two_jobs_of_one_name_are_both_named(self) -> None:
        @job(name="Acme::Mail")
        def one() -> None: ...

        def other() -> None:
            @job(name="Acme::Mail")
            def another() -> None: ...

        message = refusal(other)
        assert f"{__name__}.TestRefused.test_two_jobs_of_one_name_are_both_named.<locals>.one" in message
        assert "another" in message

    def test_a_job_that_is_loaded_again_replaces_itself(self, registry: Registry) -> None:
        first, second = declare(), declare()

        assert registry.get("X") is second.definition
        assert first is not second


class TestSet:
    def test_options_hold_for_these_pushes_only(self) -> None:
        mail = declare(queue="mails", retry=3)

        critical = mail.set(queue="critical", tags=["vip"])

        assert critical.options == {"retry": 3, "queue": "critical", "tags": ["vip"]}
        assert mail.definition.options == {"retry": 3, "queue": "mails"}
        assert (critical.queue, mail.queue) == ("critical", "mails")

    def test_it_can_be_said_more_than_once(self) -> None:
        assert declare().set(queue="a").set(retry=1).options == {"retry": 1, "queue": "a"}

    def test_functions_have_it_too(self) -> None:
        @job()
        def welcome() -> None: ...

        assert welcome.set(queue="critical").queue == "critical"

    @pytest.mark.parametrize("options", [{"quue": "x"}, {"queue": ""}, {"tags": "vip"}, {"retry": -1}])
    def test_what_a_declaration_refuses_it_refuses(self, options: dict[str, Any]) -> None:
        assert refusal(lambda: declare().set(**options)) == refusal(lambda: declare(**options))

    @pytest.mark.parametrize(
        "options", [{"queue_namespace": "a"}, {"retry_in": print}, {"max_retries_after_interruption": 1}]
    )
    def test_what_belongs_to_the_definition_is_refused(self, options: dict[str, Any]) -> None:
        assert "belongs to the definition" in refusal(lambda: declare().set(**options))


@pytest.mark.usefixtures("setup")
class TestVerbs:
    """What they refuse before anything is sent; tests/redis has what they write."""

    @pytest.mark.parametrize("args", [(), (1, 2, 3)])
    def test_arguments_that_do_not_fit_perform(self, args: tuple[Any, ...]) -> None:
        @job()
        def two(a: int, b: int) -> None: ...

        for enqueue in (two.perform_async, functools.partial(two.perform_in, 5), two.perform_inline):
            with pytest.raises(InvalidArguments, match="two was not enqueued"):
                enqueue(*args)
        with pytest.raises(InvalidArguments, match="entry 1: two was not enqueued"):
            two.perform_bulk([(1, 2), args])

    def test_a_keyword_that_no_parameter_has_is_named_before_one_that_is_missing(self) -> None:
        @job()
        def two(a: int, b: int) -> None: ...

        with pytest.raises(InvalidArguments, match=r"two was not enqueued: got .* argument 'c'; its parameters"):
            two.perform_async(1, c=2)  # type: ignore[call-arg]
        with pytest.raises(InvalidArguments, match="two was not enqueued: missing a required argument: 'b'"):
            two.perform_async(a=1)  # type: ignore[call-arg]

    @pytest.mark.parametrize("lists", ["ab", b"ab", {"a": 1}, 5, None])
    def test_a_bulk_push_of_what_is_no_list(self, lists: Any) -> None:
        with pytest.raises(InvalidArguments, match="X: a bulk push takes a list of argument lists"):
            declare().perform_bulk(lists)

    @pytest.mark.parametrize(("lists", "entry"), [([4, 5], 0), ([[1], {"a": 3}], 1), ([[1], [2], "a"], 2)])
    def test_a_bulk_push_of_entries_that_are_none(self, lists: Any, entry: int) -> None:
        with pytest.raises(InvalidArguments, match=f"entry {entry}: X: "):
            declare().perform_bulk(lists)

    def test_an_argument_that_cannot_travel_is_named_with_its_job(self) -> None:
        with pytest.raises(InvalidArguments, match=r"^Acme::Job: args\[0\] is of type object") as caught:
            declare("Acme::Job").perform_async(object())  # type: ignore[misc]

        assert caught.value.path == "args[0]"

    @pytest.mark.parametrize(
        "delay", [True, "5", None, float("nan"), float("inf"), 10**18, 10**400, datetime(2026, 11, 20, tzinfo=UTC)]
    )
    def test_delays_that_are_none(self, delay: Any) -> None:
        with pytest.raises(InvalidPush):
            declare().perform_in(delay)  # type: ignore[misc]

    def test_times_that_are_none(self) -> None:
        for when in (True, "tomorrow", float("nan"), 10**400, datetime(2026, 11, 20)):  # noqa: DTZ001
            with pytest.raises(InvalidPush):
                declare().perform_at(when)  # type: ignore[misc]

    def test_a_queue_that_is_none(self) -> None:
        with pytest.raises(InvalidPush, match="control characters"):
            declare().set(queue="a\nb").perform_async()  # type: ignore[misc]

    def test_a_time_that_is_past_means_at_once(self, setup: Setup) -> None:
        times: list[float | None] = []
        setup.client_middleware.add(lambda push, proceed: times.append(push.at))  # it returns nothing: nothing is sent

        for delay in (0, -5, timedelta(seconds=-5)):
            assert declare().perform_in(delay) is None  # type: ignore[misc]
        for when in (1e9, 1_600_000_000.5, datetime(2020, 1, 1, tzinfo=UTC)):
            assert declare().perform_at(when) is None  # type: ignore[misc]

        assert times == [None] * 6

    @pytest.mark.parametrize("when", [60, 0, -5, 999_999_999.9])
    def test_a_delay_in_the_place_of_a_time_is_refused(self, setup: Setup, when: float) -> None:
        """In Sidekiq, perform_at(60) is a job in 60 s; here it would run at once."""
        with pytest.raises(InvalidPush, match="perform_in"):
            declare().perform_at(when)  # type: ignore[misc]
        with pytest.raises(InvalidPush, match="perform_in"):
            Client().push({"class": "Mail", "args": [], "at": when})

    def test_seconds_and_timedelta_and_moments_are_epoch_seconds_to_links(self, setup: Setup) -> None:
        times: list[float | None] = []
        setup.client_middleware.add(lambda push, proceed: times.append(push.at))
        moment = datetime(2100, 1, 1, tzinfo=UTC)

        declare().perform_at(moment)  # type: ignore[misc]
        declare().perform_at(moment.timestamp())  # type: ignore[misc]
        before = datetime.now(UTC).timestamp()
        declare().perform_in(60)  # type: ignore[misc]
        declare().perform_in(timedelta(minutes=1))  # type: ignore[misc]
        after = datetime.now(UTC).timestamp()

        assert times[:2] == [moment.timestamp()] * 2
        assert all(at is not None and before + 60 <= at <= after + 60 for at in times[2:])

    def test_a_keyword_may_have_the_name_of_a_parameter_of_ours(self, setup: Setup) -> None:
        pushed: list[Any] = []
        setup.client_middleware.add(lambda push, proceed: pushed.append(push.payload["args"]))

        @job
        def sample(self: int, cls: int, delay: int, when: int) -> None: ...

        class Sample(Job):
            def perform(this, cls: int, delay: int, when: int, job: int = 4) -> None: ...  # noqa: N805

        given = {"cls": 1, "delay": 2, "when": 3}
        for verbs in (sample, sample.set(queue="low")):
            verbs.perform_async(self=0, **given)
            verbs.perform_in(60, self=0, **given)
            verbs.perform_at(9e9, self=0, **given)
            verbs.enqueue(self=0, **given)
            verbs.perform_inline(self=0, **given)
        sample(self=0, **given)
        Sample.perform_async(**given)
        Sample.perform_in(60, **given)
        Sample.perform_at(9e9, **given)
        Sample.enqueue(**given)
        Sample.perform_inline(**given)

        assert pushed == [[0, 1, 2, 3]] * 10 + [[1, 2, 3]] * 5


class TestInline:
    def test_it_runs_at_once_with_arguments_as_redis_would_give_them(self, setup: Setup) -> None:
        @job()
        def add(numbers: list[int], more: dict[str, int], last: int = 3) -> Any:
            return [numbers, more, last]

        given = {"a": 1}
        result = add.perform_inline([1, 2], given)

        assert result == [[1, 2], {"a": 1}, 3]
        assert result is not None
        assert result[1] is not given

    def test_errors_come_out_as_they_are(self, setup: Setup) -> None:
        @job()
        def broken() -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            broken.perform_inline()

    def test_arguments_that_cannot_travel_are_refused(self, setup: Setup) -> None:
        @job()
        def take(value: object) -> None: ...

        with pytest.raises(InvalidArguments, match=r"args\[0\]"):
            take.perform_inline(object())

    def test_both_chains_are_around_it(self, setup: Setup) -> None:
        seen: list[str] = []

        def on_push(push: Push, proceed: Callable[[], Push | None]) -> Push | None:
            seen.append(f"push {push.payload['class']} at {push.at}")
            return proceed()

        def on_run(run: Run, proceed: Callable[[], Outcome | None]) -> Outcome | None:
            seen.append(f"run {run.job.name} {run.jid == run.payload['jid']} {run.queue}")
            return proceed()

        setup.client_middleware.add(on_push)
        setup.server_middleware.add(on_run)

        declare("Acme::Job", queue="mails").perform_inline()

        assert seen == ["push Acme::Job at None", "run Acme::Job True mails"]

    def test_a_link_of_either_chain_may_stop_it(self, setup: Setup) -> None:
        ran: list[int] = []

        @job()
        def note() -> int:
            ran.append(1)
            return 5

        setup.server_middleware.add(lambda run, proceed: Done())
        assert note.perform_inline() is None
        setup.client_middleware.add(lambda push, proceed: None)
        assert note.perform_inline() is None
        assert ran == []


def test_a_generator_is_refused_because_calling_it_runs_nothing(registry: Registry) -> None:
    with pytest.raises(JobDefinitionError, match="yield"):

        @job()
        def lazy() -> Any:
            yield 1
