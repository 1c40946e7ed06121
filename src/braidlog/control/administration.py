"""Changes of topics and configs that concern more than the catalog."""

from braidlog.configs.resources import BROKER_RESOURCE, GROUP_RESOURCE
from braidlog.configs.topic import LIGHTNING
from braidlog.control.catalog import Catalog
from braidlog.control.groups.config import group_defaults
from braidlog.control.groups.coordinator import GroupCoordinator
from braidlog.control.interface import (
    AlterConfigs,
    ConfigResources,
    DeleteTopics,
    DescribeConfigs,
    DescribedConfigs,
    ListConfigResources,
    Outcome,
    TopicOutcomes,
)
from braidlog.control.journals.journals import Journals
from braidlog.control.resource_configs import DEFINITIONS, ResourceConfigs
from braidlog.control.settings import ControlSettings, configs_in_force


class Administration:
    def __init__(
        self,
        catalog: Catalog,
        resource_configs: ResourceConfigs,
        groups: GroupCoordinator,
        journals: Journals,
        settings: ControlSettings,
    ) -> None:
        self._catalog = catalog
        self._resource_configs = resource_configs
        self._groups = groups
        self._journals = journals
        self._settings = settings

    async def load(self) -> None:
        """Load the configs of groups, clients and agents, and hand the groups theirs."""
        await self._resource_configs.load()
        for group_id in self._resource_configs.names(GROUP_RESOURCE):
            self._configure_group(group_id)

    async def delete_topics(self, request: DeleteTopics) -> TopicOutcomes:
        """Delete topics, and the offsets that groups have committed for them."""
        answer = await self._catalog.delete_topics(request)
        removed = frozenset(outcome.topic.topic_id for outcome in answer.outcomes if outcome.topic is not None)
        if removed:
            self._groups.commits.topics_removed(removed)
        return answer

    async def alter_configs(self, request: AlterConfigs) -> Outcome:
        if request.resource_type in DEFINITIONS:
            outcome = await self._resource_configs.alter(request)
            if request.resource_type == GROUP_RESOURCE and not outcome.error_code:
                self._configure_group(request.resource_name)
            return outcome
        before = self._catalog.topics_of_type(LIGHTNING)
        outcome = await self._catalog.alter_configs(request)
        after = frozenset(topic.info.topic_id for topic in self._catalog.topics_of_type(LIGHTNING))
        if any(topic.info.topic_id not in after for topic in before):
            # These are classic topics now, but some of their batches may still be in journals.
            self._journals.backlog.want_scan()
            await self._journals.plan_once()
        return outcome

    async def describe_configs(self, request: DescribeConfigs) -> DescribedConfigs:
        if request.resource_type == BROKER_RESOURCE:
            return DescribedConfigs({}, configs_in_force(self._settings))
        defaults = group_defaults(self._settings.groups) if request.resource_type == GROUP_RESOURCE else {}
        return DescribedConfigs(self._resource_configs.of(request.resource_type, request.resource_name), defaults)

    async def list_config_resources(self, request: ListConfigResources) -> ConfigResources:
        return ConfigResources(self._resource_configs.names(request.resource_type))

    def _configure_group(self, group_id: str) -> None:
        self._groups.configure(group_id, self._resource_configs.of(GROUP_RESOURCE, group_id))
