"""All campaigns, in the order of the table."""

from tests.faults import damages, disks, kills, nonfinite, ranks, stops, stuck
from tests.faults.campaign import Campaign

ALL: dict[str, Campaign] = {
    campaign.name: campaign
    for campaign in (
        kills.CAMPAIGN,
        damages.CAMPAIGN,
        stops.SIGTERM,
        stops.LAUNCHER,
        disks.CAMPAIGN,
        nonfinite.CAMPAIGN,
        ranks.CAMPAIGN,
        stuck.CAMPAIGN,
    )
}
