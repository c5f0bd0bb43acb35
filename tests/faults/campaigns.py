"""All campaigns, in the order of the table."""

from tests.faults import damages, disks, fuzz, kills, launches, nonfinite, ranks, stops, stuck
from tests.faults.campaign import Campaign

ALL: dict[str, Campaign] = {
    campaign.name: campaign
    for campaign in (
        kills.CAMPAIGN,
        damages.CAMPAIGN,
        stops.SIGTERM,
        stops.LAUNCHER,
        launches.CAMPAIGN,
        disks.CAMPAIGN,
        nonfinite.CAMPAIGN,
        ranks.CAMPAIGN,
        stuck.CAMPAIGN,
        fuzz.CAMPAIGN,
    )
}
