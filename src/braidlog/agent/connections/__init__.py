"""Client connections: frames, responses, and limits of memory and quotas."""
