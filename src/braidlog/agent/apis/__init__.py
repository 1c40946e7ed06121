"""One module per Kafka API, its key first: `api_19_create_topics`.

A cold API (all but Produce, Fetch, Metadata and ApiVersions) is a module with

- `KEY`, the API key, and `VERSIONS`, the versions served, as a half-open `range`;
- `async def handle(request, context)`, from kio's request entity to kio's response entity of the same version.

Handlers raise nothing for bad input: a wrong request is answered with Kafka's error code for it.
"""
