"""Frames over a real socketpair: partial reads, a full pipe, the end of the other side."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from kiqcluster.ipc.frames import HEADER, MAX_FRAME_BYTES, READ_BYTES, Channel


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    """Two ends."""
    ends = [Channel(sock) for sock in socket.socketpair()]
    yield ends[0], ends[1]
    for end in ends:
        end.close()


@pytest.fixture
def raw() -> Iterator[tuple[socket.socket, Channel]]:
    """A bare socket and the channel at its other end."""
    one, other = socket.socketpair()
    channel = Channel(other)
    yield one, channel
    one.close()
    channel.close()


def frame(body: bytes) -> bytes:
    return HEADER.pack(len(body)) + body


class TestFrames:
    def test_a_frame_arrives_as_it_was_sent(self, pair: tuple[Channel, Channel]) -> None:
        pair[0].send("beat", busy=3, name="é", none=None, nested={"a": [1.5]})

        assert pair[1].receive() == [{"type": "beat", "busy": 3, "name": "é", "none": None, "nested": {"a": [1.5]}}]

    def test_frames_arrive_in_order_both_ways(self, pair: tuple[Channel, Channel]) -> None:
        for number in range(5):
            pair[0].send("up", number=number)
        pair[1].send("down")

        assert [each["number"] for each in pair[1].receive()] == list(range(5))
        assert pair[0].receive() == [{"type": "down"}]

    def test_nothing_there_is_an_empty_list_at_once(self, pair: tuple[Channel, Channel]) -> None:
        assert pair[0].receive() == []
        assert not pair[0].closed

    def test_a_frame_is_put_together_from_single_bytes(self, raw: tuple[socket.socket, Channel]) -> None:
        sock, channel = raw
        arrived = []
        for byte in frame(b'{"type":"ready"}') + frame(b'{"type":"bye"}'):
            sock.send(bytes([byte]))
            arrived.append(channel.receive())

        assert [frames for frames in arrived if frames] == [[{"type": "ready"}], [{"type": "bye"}]]

    def test_a_frame_and_a_half_is_one_frame_now_and_one_later(self, raw: tuple[socket.socket, Channel]) -> None:
        sock, channel = raw
        data = frame(b'{"type":"a"}') + frame(b'{"type":"b"}')

        sock.send(data[:-3])
        first = channel.receive()
        sock.send(data[-3:])

        assert (first, channel.receive()) == ([{"type": "a"}], [{"type": "b"}])

    @pytest.mark.parametrize("extra", [-1, 0, 1])
    def test_a_frame_of_just_one_read_is_whole(self, raw: tuple[socket.socket, Channel], extra: int) -> None:
        sock, channel = raw
        body = b'{"type":"' + b"x" * (READ_BYTES + extra - HEADER.size - 11) + b'"}'

        sock.send(frame(body))

        assert len(frame(body)) == READ_BYTES + extra
        assert len(channel.receive()) == 1


class TestFullPipe:
    def test_sending_to_somebody_who_does_not_read_never_blocks_and_loses_nothing(
        self, pair: tuple[Channel, Channel]
    ) -> None:
        text = "x" * 100_000
        for number in range(20):
            pair[0].send("letter", number=number, text=text)
        assert pair[0].pending > 0

        received = []
        while len(received) < 20:
            received += pair[1].receive()
            pair[0].flush()

        assert [each["number"] for each in received] == list(range(20))
        assert pair[0].pending == 0

    def test_metrics_are_handed_on_as_they_came(self, pair: tuple[Channel, Channel]) -> None:
        """They are large, and the supervisor decodes them when it has time."""
        pair[0].send("metrics", values=[[1, 0.000001, 1e17]])
        pair[0].send("metrics2", values=[])

        assert pair[1].receive() == [
            {"type": "metrics", "raw": b'{"type":"metrics","values":[[1,1e-6,1e17]]}'},
            {"type": "metrics2", "values": []},
        ]

    @pytest.mark.parametrize("odd", ["\ud800", 10**5_000], ids=["surrogate", "integer"])
    def test_what_the_fast_encoder_refuses_is_sent_all_the_same(
        self, pair: tuple[Channel, Channel], odd: object
    ) -> None:
        pair[0].send("letter", odd=odd)

        assert pair[1].receive() == [{"type": "letter", "odd": odd}]

    def test_nothing_waits_when_the_other_side_reads(self, pair: tuple[Channel, Channel]) -> None:
        pair[0].send("beat")

        assert pair[0].pending == 0


class TestEnd:
    def test_what_was_sent_before_the_end_is_still_received(self, pair: tuple[Channel, Channel]) -> None:
        pair[0].send("bye")
        pair[0].close()

        assert pair[1].receive() == [{"type": "bye"}]
        assert pair[1].receive() == []
        assert pair[1].closed

    def test_half_a_frame_before_the_end_is_no_frame(self, raw: tuple[socket.socket, Channel]) -> None:
        sock, channel = raw
        sock.send(frame(b'{"type":"a"}')[:-1])
        sock.close()

        assert channel.receive() == []
        assert channel.receive() == []
        assert channel.closed

    def test_sending_after_the_end_does_nothing(self, pair: tuple[Channel, Channel]) -> None:
        pair[1].close()

        for _ in range(3):
            pair[0].send("beat", text="x" * 1_000)

        assert pair[0].pending == 0
        assert pair[0].receive() == []
        assert pair[0].closed

    def test_sending_on_a_closed_channel_does_nothing(self, pair: tuple[Channel, Channel]) -> None:
        pair[0].close()
        pair[0].send("beat")
        pair[0].flush()

        assert pair[0].pending == 0

    def test_an_announcement_that_cannot_be_is_the_end(self, raw: tuple[socket.socket, Channel]) -> None:
        sock, channel = raw
        sock.send(HEADER.pack(MAX_FRAME_BYTES + 1) + b"rubbish")

        assert channel.receive() == []
        assert channel.closed

    def test_frames_before_it_still_count(self, raw: tuple[socket.socket, Channel]) -> None:
        sock, channel = raw
        sock.send(frame(b'{"type":"bye"}') + b"\xff" * 10)

        assert channel.receive() == [{"type": "bye"}]
        assert channel.closed
