"""The cluster as clients see it."""

from kio.schema.errors import ErrorCode
from tests.agent.apis.api_caller import ApiCaller, part


async def test_the_cluster(call: ApiCaller) -> None:
    asked = {"include_cluster_authorized_operations": True, "include_fenced_brokers": False}
    response = await call(60, part("DescribeClusterRequest", **asked))
    assert response.error_code is ErrorCode.none
    assert response.cluster_id == call.agent.view.cluster_id
    assert response.controller_id == min(call.agent.view.agents)
    assert [(each.host, each.port, each.rack) for each in response.brokers] == [
        ("127.0.0.1", 9092, "zone-a"),
        ("127.0.0.1", 9093, "zone-b"),
    ]
    assert response.cluster_authorized_operations == 8096
    for endpoint_type, code in ((2, ErrorCode.mismatched_endpoint_type), (3, ErrorCode.unsupported_endpoint_type)):
        response = await call(60, part("DescribeClusterRequest", endpoint_type=endpoint_type, **asked))
        assert (response.error_code, response.brokers) == (code, ())
