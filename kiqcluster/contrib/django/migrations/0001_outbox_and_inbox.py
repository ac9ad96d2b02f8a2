"""The tables of outbox and inbox."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies: list[tuple[str, str]] = []
    operations = [
        migrations.CreateModel(
            name="OutboxJob",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("jid", models.TextField()),
                ("queue", models.TextField()),
                ("run_at", models.FloatField(null=True)),
                ("payload", models.BinaryField()),
                ("guards", models.TextField()),
                ("shard", models.TextField()),
                ("wait_replicas", models.IntegerField()),
                ("created_at", models.FloatField()),
                ("retry_at", models.FloatField()),
                ("problem", models.TextField()),
            ],
            options={"db_table": "kiq_outbox"},
        ),
        migrations.CreateModel(
            name="InboxKey",
            fields=[
                ("key", models.CharField(max_length=255, primary_key=True, serialize=False)),
                ("recorded_at", models.FloatField(db_index=True)),
            ],
            options={"db_table": "kiq_inbox"},
        ),
    ]
