"""One module per Kafka API, its key first, in a folder per subject.

For example, CreateTopics is `topics.api_19_create_topics`.

Every API but Produce, Fetch, Metadata and ApiVersions is a module with

- `KEY`, the API key, and `VERSIONS`, the versions served, as a half-open `range`;
- `async def handle(request, context)`, from kio's request entity to kio's response entity of the same version.

`context.services` has what the handlers of a folder use, as `services.py` in that folder says. `registry` is the table
of all cold APIs, and `dispatch` takes each request to its handler. Produce, Fetch and Metadata are classes that name
what they use in their constructors.

Handlers raise nothing for bad input: they answer a wrong request with Kafka's error code for it.
"""
