; x86-64-v3

define void @f(ptr captures(none) align 4 %A, ptr captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp sgt i64 %nthreads, 1
  br i1 %.3, label %split.1, label %share.2
split.1:
  %.4 = udiv i64 %n, %nthreads
  %.5 = urem i64 %n, %nthreads
  %.6 = call i64 @llvm.smin.i64(i64 %tid, i64 %.5)
  %.7 = mul nsw i64 %tid, %.4
  %.8 = add nsw i64 %.7, %.6
  %.9 = icmp slt i64 %tid, %.5
  %.10 = zext i1 %.9 to i64
  %.11 = add nsw i64 %.8, %.4
  %.12 = add nsw i64 %.11, %.10
  br label %share.2
share.2:
  %.13 = phi i64 [ 0, %entry ], [ %.8, %split.1 ]
  %.14 = phi i64 [ %n, %entry ], [ %.12, %split.1 ]
  %.17 = icmp slt i64 %.13, %.14
  br i1 %.17, label %i_body.15, label %i_done.16
i_body.15:
  %i.18 = phi i64 [ %.13, %share.2 ], [ %i_next.22, %i_body.15 ]
  %.19 = getelementptr inbounds float, ptr %A, i64 %i.18
  %.20 = load float, ptr %.19, align 4
  %.21 = getelementptr inbounds float, ptr %C, i64 %i.18
  store float %.20, ptr %.21, align 4
  %i_next.22 = add nuw nsw i64 %i.18, 1
  %.23 = icmp slt i64 %i_next.22, %.14
  br i1 %.23, label %i_body.15, label %i_done.16, !llvm.loop !0
i_done.16:
  %.26 = icmp sgt i64 %nthreads, 1
  br i1 %.26, label %wait.24, label %after.25
wait.24:
  call void @tw_barrier(ptr %barrier, i64 %nthreads)
  br label %after.25
after.25:
  %.29 = icmp sgt i64 %nthreads, 1
  br i1 %.29, label %split.27, label %share.28
split.27:
  %.30 = udiv i64 %n, %nthreads
  %.31 = urem i64 %n, %nthreads
  %.32 = call i64 @llvm.smin.i64(i64 %tid, i64 %.31)
  %.33 = mul nsw i64 %tid, %.30
  %.34 = add nsw i64 %.33, %.32
  %.35 = icmp slt i64 %tid, %.31
  %.36 = zext i1 %.35 to i64
  %.37 = add nsw i64 %.34, %.30
  %.38 = add nsw i64 %.37, %.36
  br label %share.28
share.28:
  %.39 = phi i64 [ 0, %after.25 ], [ %.34, %split.27 ]
  %.40 = phi i64 [ %n, %after.25 ], [ %.38, %split.27 ]
  %.43 = icmp slt i64 %.39, %.40
  br i1 %.43, label %j_body.41, label %j_done.42
j_body.41:
  %j.44 = phi i64 [ %.39, %share.28 ], [ %j_next.51, %j_body.41 ]
  %.45 = mul nsw i64 %j.44, -1
  %.46 = add nsw i64 %n, %.45
  %.47 = add nsw i64 %.46, -1
  %.48 = getelementptr inbounds float, ptr %C, i64 %.47
  %.49 = load float, ptr %.48, align 4
  %.50 = getelementptr inbounds float, ptr %A, i64 %j.44
  store float %.49, ptr %.50, align 4
  %j_next.51 = add nuw nsw i64 %j.44, 1
  %.52 = icmp slt i64 %j_next.51, %.40
  br i1 %.52, label %j_body.41, label %j_done.42, !llvm.loop !1
j_done.42:
  %.55 = icmp sgt i64 %nthreads, 1
  br i1 %.55, label %wait.53, label %after.54
wait.53:
  call void @tw_barrier(ptr %barrier, i64 %nthreads)
  br label %after.54
after.54:
  ret void
}

declare i64 @llvm.smin.i64(i64, i64)
declare void @tw_barrier(ptr, i64) nounwind

!0 = distinct !{!0, !{!"llvm.loop.unroll.disable"}}
!1 = distinct !{!1, !{!"llvm.loop.unroll.disable"}}
; znver4

define void @f(ptr captures(none) align 4 %A, ptr captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp sgt i64 %nthreads, 1
  br i1 %.3, label %split.1, label %share.2
split.1:
  %.4 = udiv i64 %n, %nthreads
  %.5 = urem i64 %n, %nthreads
  %.6 = call i64 @llvm.smin.i64(i64 %tid, i64 %.5)
  %.7 = mul nsw i64 %tid, %.4
  %.8 = add nsw i64 %.7, %.6
  %.9 = icmp slt i64 %tid, %.5
  %.10 = zext i1 %.9 to i64
  %.11 = add nsw i64 %.8, %.4
  %.12 = add nsw i64 %.11, %.10
  br label %share.2
share.2:
  %.13 = phi i64 [ 0, %entry ], [ %.8, %split.1 ]
  %.14 = phi i64 [ %n, %entry ], [ %.12, %split.1 ]
  %.17 = icmp slt i64 %.13, %.14
  br i1 %.17, label %i_body.15, label %i_done.16
i_body.15:
  %i.18 = phi i64 [ %.13, %share.2 ], [ %i_next.22, %i_body.15 ]
  %.19 = getelementptr inbounds float, ptr %A, i64 %i.18
  %.20 = load float, ptr %.19, align 4
  %.21 = getelementptr inbounds float, ptr %C, i64 %i.18
  store float %.20, ptr %.21, align 4
  %i_next.22 = add nuw nsw i64 %i.18, 1
  %.23 = icmp slt i64 %i_next.22, %.14
  br i1 %.23, label %i_body.15, label %i_done.16, !llvm.loop !0
i_done.16:
  %.26 = icmp sgt i64 %nthreads, 1
  br i1 %.26, label %wait.24, label %after.25
wait.24:
  call void @tw_barrier(ptr %barrier, i64 %nthreads)
  br label %after.25
after.25:
  %.29 = icmp sgt i64 %nthreads, 1
  br i1 %.29, label %split.27, label %share.28
split.27:
  %.30 = udiv i64 %n, %nthreads
  %.31 = urem i64 %n, %nthreads
  %.32 = call i64 @llvm.smin.i64(i64 %tid, i64 %.31)
  %.33 = mul nsw i64 %tid, %.30
  %.34 = add nsw i64 %.33, %.32
  %.35 = icmp slt i64 %tid, %.31
  %.36 = zext i1 %.35 to i64
  %.37 = add nsw i64 %.34, %.30
  %.38 = add nsw i64 %.37, %.36
  br label %share.28
share.28:
  %.39 = phi i64 [ 0, %after.25 ], [ %.34, %split.27 ]
  %.40 = phi i64 [ %n, %after.25 ], [ %.38, %split.27 ]
  %.43 = icmp slt i64 %.39, %.40
  br i1 %.43, label %j_body.41, label %j_done.42
j_body.41:
  %j.44 = phi i64 [ %.39, %share.28 ], [ %j_next.51, %j_body.41 ]
  %.45 = mul nsw i64 %j.44, -1
  %.46 = add nsw i64 %n, %.45
  %.47 = add nsw i64 %.46, -1
  %.48 = getelementptr inbounds float, ptr %C, i64 %.47
  %.49 = load float, ptr %.48, align 4
  %.50 = getelementptr inbounds float, ptr %A, i64 %j.44
  store float %.49, ptr %.50, align 4
  %j_next.51 = add nuw nsw i64 %j.44, 1
  %.52 = icmp slt i64 %j_next.51, %.40
  br i1 %.52, label %j_body.41, label %j_done.42, !llvm.loop !1
j_done.42:
  %.55 = icmp sgt i64 %nthreads, 1
  br i1 %.55, label %wait.53, label %after.54
wait.53:
  call void @tw_barrier(ptr %barrier, i64 %nthreads)
  br label %after.54
after.54:
  ret void
}

declare i64 @llvm.smin.i64(i64, i64)
declare void @tw_barrier(ptr, i64) nounwind

!0 = distinct !{!0, !{!"llvm.loop.unroll.disable"}}
!1 = distinct !{!1, !{!"llvm.loop.unroll.disable"}}
