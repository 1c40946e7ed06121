"""The services of the handlers that find and delete records."""

from dataclasses import dataclass
from typing import TypeAlias

from braidlog.agent.apis.context import RequestContext
from braidlog.agent.apis.records.batch_work import BatchWork
from braidlog.agent.cluster.view import ClusterView
from braidlog.agent.read_path.reader import Reader
from braidlog.control.interface import ControlPlane


@dataclass(frozen=True, slots=True)
class RecordServices:
    control: ControlPlane
    view: ClusterView
    reader: Reader
    batch_work: BatchWork


RecordContext: TypeAlias = RequestContext[RecordServices]
