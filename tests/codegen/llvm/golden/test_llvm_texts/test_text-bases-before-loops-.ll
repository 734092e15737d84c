; x86-64-v3

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias captures(none) align 4 %C, i64 %m, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.6 = icmp slt i64 0, %m
  br i1 %.6, label %i_body.4, label %i_done.5
i_body.4:
  %i.7 = phi i64 [ 0, %first.1 ], [ %i_next.31, %c_done.15 ]
  %.8 = mul nsw i64 %n, %i.7
  %.9 = mul nsw i64 %.8, 8
  %.10 = freeze i64 %.9
  %.11 = getelementptr float, ptr %C, i64 %.10
  %.12 = freeze i64 %.9
  %.13 = getelementptr float, ptr %A, i64 %.12
  br label %c_body.14
c_body.14:
  %c.16 = phi i64 [ 0, %i_body.4 ], [ %c_next.29, %c_body.14 ]
  %.17 = load <8 x float>, ptr %.11, align 4
  %.18 = mul nsw i64 %n, %m
  %.19 = mul nsw i64 %.18, %c.16
  %.20 = mul nsw i64 %.19, 8
  %.21 = getelementptr float, ptr %.13, i64 %.20
  %.22 = load <8 x float>, ptr %.21, align 4
  %.23 = fadd contract <8 x float> %.17, %.22
  store <8 x float> %.23, ptr %.11, align 4
  %.24 = getelementptr float, ptr %.11, i64 8
  %.25 = load <8 x float>, ptr %.24, align 4
  %.26 = getelementptr float, ptr %.21, i64 8
  %.27 = load <8 x float>, ptr %.26, align 4
  %.28 = fadd contract <8 x float> %.25, %.27
  store <8 x float> %.28, ptr %.24, align 4
  %c_next.29 = add nuw nsw i64 %c.16, 1
  %.30 = icmp slt i64 %c_next.29, 4
  br i1 %.30, label %c_body.14, label %c_done.15, !llvm.loop !0
c_done.15:
  %i_next.31 = add nuw nsw i64 %i.7, 1
  %.32 = icmp slt i64 %i_next.31, %m
  br i1 %.32, label %i_body.4, label %i_done.5, !llvm.loop !1
i_done.5:
  br label %join.2
join.2:
  ret void
}


!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
!1 = distinct !{!1, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
; znver4

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias captures(none) align 4 %C, i64 %m, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.6 = icmp slt i64 0, %m
  br i1 %.6, label %i_body.4, label %i_done.5
i_body.4:
  %i.7 = phi i64 [ 0, %first.1 ], [ %i_next.31, %c_done.15 ]
  %.8 = mul nsw i64 %n, %i.7
  %.9 = mul nsw i64 %.8, 8
  %.10 = freeze i64 %.9
  %.11 = getelementptr float, ptr %C, i64 %.10
  %.12 = freeze i64 %.9
  %.13 = getelementptr float, ptr %A, i64 %.12
  br label %c_body.14
c_body.14:
  %c.16 = phi i64 [ 0, %i_body.4 ], [ %c_next.29, %c_body.14 ]
  %.17 = load <8 x float>, ptr %.11, align 4
  %.18 = mul nsw i64 %n, %m
  %.19 = mul nsw i64 %.18, %c.16
  %.20 = mul nsw i64 %.19, 8
  %.21 = getelementptr float, ptr %.13, i64 %.20
  %.22 = load <8 x float>, ptr %.21, align 4
  %.23 = fadd contract <8 x float> %.17, %.22
  store <8 x float> %.23, ptr %.11, align 4
  %.24 = getelementptr float, ptr %.11, i64 8
  %.25 = load <8 x float>, ptr %.24, align 4
  %.26 = getelementptr float, ptr %.21, i64 8
  %.27 = load <8 x float>, ptr %.26, align 4
  %.28 = fadd contract <8 x float> %.25, %.27
  store <8 x float> %.28, ptr %.24, align 4
  %c_next.29 = add nuw nsw i64 %c.16, 1
  %.30 = icmp slt i64 %c_next.29, 4
  br i1 %.30, label %c_body.14, label %c_done.15, !llvm.loop !0
c_done.15:
  %i_next.31 = add nuw nsw i64 %i.7, 1
  %.32 = icmp slt i64 %i_next.31, %m
  br i1 %.32, label %i_body.4, label %i_done.5, !llvm.loop !1
i_done.5:
  br label %join.2
join.2:
  ret void
}


!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
!1 = distinct !{!1, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
