"""The two tables, as those of contrib/sqlalchemy: `kiq_outbox` and `kiq_inbox`."""

from __future__ import annotations

from django.db import models

__all__ = ["InboxKey", "OutboxJob"]


class OutboxJob(models.Model):
    """A job that waits for its push (contrib/outbox/rows).  retry_at: no earlier push, epoch seconds."""

    id = models.BigAutoField(primary_key=True)
    jid = models.TextField()
    queue = models.TextField()
    run_at = models.FloatField(null=True)
    payload = models.BinaryField()
    guards = models.TextField()
    shard = models.TextField()
    wait_replicas = models.IntegerField()
    created_at = models.FloatField()
    retry_at = models.FloatField()
    problem = models.TextField()

    class Meta:
        app_label = "kiqcluster"
        db_table = "kiq_outbox"


class InboxKey(models.Model):
    """A run that has taken effect.  recorded_at: epoch seconds."""

    key = models.CharField(max_length=255, primary_key=True)
    recorded_at = models.FloatField(db_index=True)

    class Meta:
        app_label = "kiqcluster"
        db_table = "kiq_inbox"
