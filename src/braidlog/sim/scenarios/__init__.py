"""The scenarios of the simulator: one module per subject, and the table of all.

A scenario is a coroutine that takes a `World`. To keep a new one, add it to `SCENARIOS`.
"""

from dataclasses import dataclass, field

from braidlog.sim.cluster import ClusterPlan
from braidlog.sim.scenarios import failover, groups, jobs, journals, log, shards, transactions
from braidlog.sim.world import Scenario


@dataclass(frozen=True, slots=True)
class PlannedScenario:
    """A scenario, and the cluster that it runs on."""

    run: Scenario
    plan: ClusterPlan = field(default_factory=ClusterPlan)


SCENARIOS = {
    "restless": PlannedScenario(shards.restless, shards.RESTLESS_PLAN),
    "shards": PlannedScenario(shards.shards, shards.SHARDS_PLAN),
    "mixed": PlannedScenario(log.mixed),
    "crashes": PlannedScenario(log.crashes),
    "failover": PlannedScenario(failover.failover, failover.FAILOVER_PLAN),
    "consumer-groups": PlannedScenario(groups.consumer_groups),
    "trimming": PlannedScenario(log.trimming),
    "sleepers": PlannedScenario(log.sleepers),
    "transactions": PlannedScenario(transactions.transactions),
    "transaction-crashes": PlannedScenario(transactions.transaction_crashes),
    "merging": PlannedScenario(jobs.merging, jobs.JOB_PLAN),
    "compacting": PlannedScenario(jobs.compacting, jobs.JOB_PLAN),
    "rounds": PlannedScenario(jobs.rounds, jobs.ROUNDS_PLAN),
    "lightning": PlannedScenario(journals.lightning, journals.LIGHTNING_PLAN),
    "lightning-crowded": PlannedScenario(journals.lightning_crowded, journals.LIGHTNING_CROWDED_PLAN),
    "lightning-busy": PlannedScenario(journals.lightning_busy, journals.LIGHTNING_BUSY_PLAN),
    "lightning-sleepers": PlannedScenario(journals.lightning_sleepers, journals.JOURNAL_PLAN),
    "lightning-outage": PlannedScenario(journals.lightning_outage, journals.LIGHTNING_OUTAGE_PLAN),
    "ripcord": PlannedScenario(journals.ripcord, journals.RIPCORD_PLAN),
    "lightning-shards": PlannedScenario(journals.lightning, journals.LIGHTNING_SHARDS_PLAN),
    "ripcord-shards": PlannedScenario(journals.ripcord, journals.RIPCORD_SHARDS_PLAN),
    "ripcord-on": PlannedScenario(journals.ripcord_on, journals.RIPCORD_ON_PLAN),
}
