"""The data plane: speaks Kafka, holds no state that matters."""
