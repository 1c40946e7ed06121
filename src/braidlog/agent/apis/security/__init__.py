"""ACLs and the credentials of users."""
