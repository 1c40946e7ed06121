"""The console: pages for people that show a running cluster and its bill.

It is a client like others: it speaks Kafka and calls the control plane.
"""
