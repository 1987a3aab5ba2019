"""What distributed keeps in undocumented places."""

from __future__ import annotations

from types import SimpleNamespace

from distributed import Client
from distributed.protocol.serialize import Serialize, Serialized, serialize

from roastcoffea.generations import event_topics, unwrapped


def test_topics_with_events_are_those_of_the_scheduler(client: Client) -> None:
    client.log_event("planted", 1)
    assert client.run_on_scheduler(lambda dask_scheduler: "planted" in event_topics(dask_scheduler))
    assert event_topics(SimpleNamespace()) == {}


def test_a_result_comes_out_of_its_wrapper() -> None:
    assert unwrapped(Serialize([1])) == unwrapped(Serialized(*serialize([1]))) == unwrapped([1]) == [1]
