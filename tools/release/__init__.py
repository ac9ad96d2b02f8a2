"""make release: the files of a release, checked and tested, and the changes that the release commit has.

__main__       the steps, in their order
rules          which version may follow; where a changelog's entries come from
contents       what a wheel and an sdist must hold, and may not
environments   fresh environments: installs, smoke tests, the tests of the installed wheel
bill           the SBOM: which packages the wheel brings

Nothing is uploaded, and the checkout changes only after every step has passed.
"""
