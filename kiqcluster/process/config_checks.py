"""Checks of a configuration: refuses values that cannot work, each with the remedy."""

from __future__ import annotations

from collections.abc import Iterable

from kiqcluster.errors import UsageError
from kiqcluster.process.config import (
    ARGUMENT_MODES,
    EVENT_LOOPS,
    JOB_LOGS,
    JSON_VERSIONS,
    LOG_FORMATS,
    LOG_LEVELS,
    MIN_LIMITED_BYTES,
    NO_LIMIT,
    SIZE_LIMITER_MODES,
    STOP_GRACE_SECONDS,
    Config,
    parse_listen,
)
from kiqcluster.process.durations import show_size
from kiqcluster.sidekiq.encryption import parse_keys
from kiqcluster.sidekiq.queue_groups import GroupSetting
from kiqcluster.store.shards import check_address, check_shard

__all__ = ["check"]


def check(config: Config, *, knows_shards: bool = True) -> None:
    """Raise UsageError for values that cannot work, each with the remedy.

    knows_shards: whether its shards are all that there are; if not, any name of a shard will do.
    """
    for is_fine, complaint in (*_numbers(config), *_combinations(config), *_choices(config)):
        if not is_fine:
            raise UsageError(complaint)
    _check_queues(config.queues)
    parse_listen(config.listen)
    check_address(config.known_redis())
    parse_keys(config.encryption_keys)
    if knows_shards:
        _check_shards(config)


def _numbers(config: Config) -> tuple[tuple[bool, str], ...]:
    """Return whether each number is in its range, and the complaint if it is not."""
    return (
        (config.concurrency is None or config.concurrency >= 1, "concurrency must be at least 1"),
        (1 <= config.async_concurrency <= 100_000, "async_concurrency must be between 1 and 100 000"),
        (min(config.min_concurrency, config.max_concurrency) >= 0, "min_concurrency and max_concurrency: 0 or more"),
        (config.stop_timeout > 0, "stop.timeout must be more than 0 seconds"),
        (config.health_boot_timeout > 0, "health.boot_timeout must be more than 0 seconds"),
        (config.roll_bake_time >= 0, "roll.bake_time cannot be negative; 0 = none"),
        (config.health_silence_timeout >= 0, "health.silence_timeout cannot be negative; 0 = off"),
        (config.health_recover_after > 0, "health.recover_after must be more than 0 seconds"),
        (config.health_respawn_burst >= 1, "health.respawn_burst must be at least 1"),
        (config.quiet_lease >= 0, "quiet_lease cannot be negative; 0 = no end"),
        (config.recycle_jobs >= 0, "recycle.jobs cannot be negative"),
        (
            config.health_ready_quorum is None or config.health_ready_quorum >= 1,
            "health.ready_quorum must be at least 1",
        ),
        (config.roll_min_serving is None or config.roll_min_serving >= 0, "roll.min_serving cannot be negative"),
        (config.max_retries >= 0, "max_retries cannot be negative"),
        (
            config.max_retries_after_interruption >= 1 or config.max_retries_after_interruption == NO_LIMIT,
            f"max_retries_after_interruption must be at least 1, or {NO_LIMIT} (no limit)",
        ),
        (config.max_forced_stops >= 0, "max_forced_stops cannot be negative"),
        (config.dead_max_jobs >= 1 and config.dead_timeout > 0, "dead.max_jobs and dead.timeout must be positive"),
        (config.average_scheduled_poll_interval > 0, "average_scheduled_poll_interval must be more than 0 seconds"),
        (
            config.size_limiter_compression_threshold >= MIN_LIMITED_BYTES,
            f"size_limiter.compression_threshold must be at least {show_size(MIN_LIMITED_BYTES)}",
        ),
        (
            config.size_limiter_limit == 0 or config.size_limiter_limit >= MIN_LIMITED_BYTES,
            f"size_limiter.limit must be 0 (no limit), or at least {show_size(MIN_LIMITED_BYTES)}",
        ),
    )


def _combinations(config: Config) -> tuple[tuple[bool, str], ...]:
    """Return whether settings go with each other, and the complaint if they do not."""
    needed = config.stop_timeout + STOP_GRACE_SECONDS
    return (
        (
            config.health_silence_timeout < config.health_recover_after,
            f"health.silence_timeout ({config.health_silence_timeout:g} s) must be below health.recover_after "
            f"({config.health_recover_after:g} s), or other workers run the jobs of one that is silent before it "
            "is killed: lower health.silence_timeout (0 = off), or raise health.recover_after",
        ),
        (
            not config.stop_platform_timeout or config.stop_platform_timeout > needed,
            f"stop.platform_timeout ({config.stop_platform_timeout:g} s) must be more than stop.timeout + "
            f"{STOP_GRACE_SECONDS:.0f} ({needed:g} s), or the platform kills jobs that are being put back: "
            "raise TimeoutStopSec or terminationGracePeriodSeconds, or lower --timeout",
        ),
        (
            not (config.recycle_memory and config.recycle_memory_hard)
            or config.recycle_memory_hard >= config.recycle_memory,
            "recycle.memory_hard must not be below recycle.memory",
        ),
        (
            not (config.preload and config.watch),
            "--watch is for changed code, and with --preload workers have the code of the start for ever: "
            "leave one of them out",
        ),
    )


def _choices(config: Config) -> tuple[tuple[bool, str], ...]:
    """Return whether each setting has one of its words, and the complaint if it has not."""
    return (
        (config.log_format in LOG_FORMATS, f"log.format is one of {', '.join(LOG_FORMATS)}"),
        (config.log_level in LOG_LEVELS, f"log.level is one of {', '.join(LOG_LEVELS)}"),
        (config.event_loop in EVENT_LOOPS, f"event_loop is one of {', '.join(EVENT_LOOPS)}"),
        (config.log_jobs in JOB_LOGS, f"log.jobs is one of {', '.join(JOB_LOGS)}"),
        (
            config.size_limiter_mode in SIZE_LIMITER_MODES,
            f"size_limiter.mode is one of {', '.join(SIZE_LIMITER_MODES)}",
        ),
        (config.strict_args in ARGUMENT_MODES, f"strict_args is one of {', '.join(ARGUMENT_MODES)}"),
        (
            config.ruby_json in JSON_VERSIONS,
            'ruby_json is "2.12" for json 2.12 and later, "2.6" for those before (in quotes: 2.60 is another number)',
        ),
    )


def _check_queues(names: Iterable[str]) -> None:
    """Raise UsageError for a queue name that a queue group cannot contain."""
    for name in names:
        if not name.isprintable() or not name or set(" ,*=") & set(name):
            raise UsageError(
                f'{name!r} in `queues` is not the name of a queue; write each as an item: ["default", "mailers"]'
            )


def _check_shards(config: Config) -> None:
    """Raise UsageError for a shard that nobody has declared."""
    for number, rule in enumerate(config.routing, 1):
        try:
            check_shard(rule.shard, config.shards)
        except UsageError as error:
            raise UsageError(f"routing, rule {number}: {error}") from error
    named = [each.shard for each in config.groups if isinstance(each, GroupSetting)]
    for name in (*named, config.shard or ""):
        check_shard(name, config.shards)
