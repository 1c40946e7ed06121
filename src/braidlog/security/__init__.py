"""Decides who may do what: principals, ACLs and what each Kafka API asks. Pure."""
