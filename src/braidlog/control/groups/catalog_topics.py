"""The topics of the catalog, as consumer groups see them."""

from collections.abc import Iterable

from braidlog.control.catalog import Catalog


class CatalogTopics:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    @property
    def revision(self) -> int:
        return self._catalog.revision

    def find(self, name: str) -> tuple[bytes, int] | None:
        topic = self._catalog.topics_by_name.get(name)
        return None if topic is None else (topic.info.topic_id, len(topic.partitions))

    def names(self) -> Iterable[str]:
        return self._catalog.topics_by_name

    def has_partition(self, topic_id: bytes, index: int) -> bool:
        return self._catalog.partition(topic_id, index) is not None

    def name_of(self, topic_id: bytes) -> str | None:
        topic = self._catalog.topics.get(topic_id)
        return None if topic is None else topic.info.name
