"""The errors that roastcoffea raises for its own reasons; an error of the analysis is never wrapped."""


class RoastcoffeaError(Exception):
    """What every error of this package derives from."""


class MeasurementError(RoastcoffeaError):
    """A stored measurement cannot be read or written; the text names the file and the way out."""


class MissingMetricError(RoastcoffeaError, KeyError):
    """A metric could not be computed for this run; the text gives the reason."""

    def __str__(self) -> str:
        return Exception.__str__(self)
