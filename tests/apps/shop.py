"""An application with a metric of every type that prometheus-client has."""

from __future__ import annotations

from prometheus_client import Counter, Enum, Gauge, Histogram, Info, Summary

from kiqcluster import job

sold = Counter("shop_sold", "Things sold", ["thing"])
size = Histogram("shop_size", "Of things", buckets=[1, 5])
took = Summary("shop_took_seconds", "To sell one")
gauges = {
    mode: Gauge(f"shop_{mode}", "x", multiprocess_mode=mode)
    for mode in ("all", "sum", "min", "max", "mostrecent", "liveall", "livesum")
}
Info("shop", "Which one").info({"town": "Rome"})
door = Enum("shop_door", "x", states=["open", "shut"])


@job()
def sell(thing, value):
    sold.labels(thing).inc(1, {"trace_id": "t1"})
    size.observe(value, {"trace_id": "t2"})
    took.observe(value)
    for gauge in gauges.values():
        gauge.set(value)
    door.state("shut")
