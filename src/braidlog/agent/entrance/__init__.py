"""Who may come in: listeners, certificates, logins."""
