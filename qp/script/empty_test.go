package script_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/qp/script"
)

func TestEmptyScriptFails(t *testing.T) {
	for _, text := range []string{"", "\n\n", "# only a comment\n"} {
		require.ErrorContains(t, script.Run(text), "no statements")
	}
}
