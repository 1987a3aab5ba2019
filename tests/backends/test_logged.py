from __future__ import annotations

import json

from stand_ins import WORKER

from roastcoffea.backends.logged import LoggedPeriod
from roastcoffea.log.reader import ClusterLog
from roastcoffea.recording.recovery import ReplayedCluster


def test_facts_of_a_cluster_go_through_a_journal() -> None:
    first, again = ReplayedCluster(), ReplayedCluster()
    facts = {"recorded": True, "hosts": [{"name": "h", "cores": 2, "memory": None}], "problems": ["odd"]}
    facts |= {"dropped": {"tasks": 3}, "refused": 2, "failures": 1, "clock_offset": 0.5}
    facts |= {"withheld": {WORKER: [0.1, 2, None], "other": None}, "asked": {"job": 4.0}}
    first.learn(facts)
    ((kind, data),) = first.news()
    assert list(first.news()) == []
    again.take(kind, data)
    assert again.facts() == first.facts()
    expected = json.loads(json.dumps(facts)) | {"hosts": json.loads(data)["hosts"], "versions": {}}
    assert json.loads(data) == expected
    assert again.was_open
    assert again.clock_offset == 0.5
    assert again.hosts[0].cores == 2
    assert again.notes() == [
        "odd",
        "the scheduler plugin failed 1 time: records are missing",
        "2 messages of others to the collector's topic were refused",
        "3 rows of tasks were dropped on the scheduler",
    ]


def test_records_of_a_period_are_those_of_its_log() -> None:
    log = ClusterLog()
    period = LoggedPeriod(log=log)
    assert period.received is log.received
    assert period.last_contact(1.0, 2.0) == 2.0
