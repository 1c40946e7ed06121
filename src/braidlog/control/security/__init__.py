"""Access rules and the credentials of users, as the control plane keeps them."""
